"""Predictions in several processes: they take turns with batches of image files, and share the rows of other files."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from selfadapt.core import distributed
from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback
from selfadapt.runs.inspect.predictor import Predictor


def listed_by_first(files: Callable[[], list[Path]]) -> list[Path]:
    """Return the files that the first process lists, which alone reads standard input, in every process."""
    listed: list[Path] | UserError = []
    if distributed.rank() == 0:
        try:
            listed = files()
        except UserError as error:
            listed = error
    found = distributed.from_first(listed)
    if isinstance(found, UserError):
        raise found
    return found


def answers_in_turn(
    predictor: Predictor, files: Sequence[Path], batch_size: int, on_progress: ProgressCallback
) -> Iterator[dict[str, Any]]:
    """Yield the records of all files in order, in every process.

    An error of one process is raised in all, after the records before it, as in a single process.
    """
    done = 0
    for of_rows, group in groupby(files, predictor.shares_rows):
        for batch in _batches(list(group), batch_size * (1 if of_rows else distributed.world_size())):
            yield from predictor.answer(batch) if of_rows else _in_turn(predictor, batch, batch_size)
            done += len(batch)
            on_progress(done, len(files))


def _batches(files: Sequence[Path], size: int) -> Iterator[Sequence[Path]]:
    return (files[start : start + size] for start in range(0, len(files), size))


def _in_turn(predictor: Predictor, files: Sequence[Path], batch_size: int) -> Iterator[dict[str, Any]]:
    """Yield the records of one batch for each process."""
    own = batch_size * distributed.rank()
    with distributed.alone():
        found = _answers(predictor, files[own : own + batch_size])
    for records, error in distributed.all_gather_objects(found):
        yield from records
        if error is not None:
            raise error


_Answers = tuple[list[dict[str, Any]], UserError | None]


def _answers(predictor: Predictor, files: Sequence[Path]) -> _Answers:
    records: list[dict[str, Any]] = []
    try:
        records.extend(predictor.answer(files))
    except UserError as error:
        return records, error
    return records, None
