"""The run folder: reading and writing its files (paths.py lists them)."""

import csv
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast, get_args

from selfadapt.core import distributed
from selfadapt.core.atomic_files import atomic_path, atomic_write
from selfadapt.core.errors import UserError
from selfadapt.core.regular_files import check_tree, sha256_of
from selfadapt.core.typed_json import check, parse
from selfadapt.data.duplicates.groups import DuplicateGroup
from selfadapt.data.duplicates.near_duplicates import Kind
from selfadapt.run_folder import checksums, contents
from selfadapt.run_folder.csv_tables import parse_table, read_table, write_table
from selfadapt.run_folder.lock import folder_lock
from selfadapt.run_folder.metrics_file import read_records
from selfadapt.run_folder.paths import RunPaths

if TYPE_CHECKING:
    from torch import Tensor

_FIRST_COLUMNS = ("id", "path", "part", "given", "suggested", "confidence", "weight", "suspect", "outsider")
_LATER_COLUMNS = ("predicted", "p_wrong", "runner_up", "duplicate_group", "reason", "relative_path")  # not in old files
LABEL_COLUMNS = (*_FIRST_COLUMNS, *_LATER_COLUMNS, "truth")
DUPLICATE_COLUMNS = ("group", "id", "path", "part", "given", "kind")
SAMPLE_COLUMNS = ("id", "path", "part", "given", "truth", "corrupted")
FORMAT = 2  # of run.json and the files beside it; format 1 had no number
_BEFORE_THE_START = re.compile(
    r"\.lock|\.draft-.*|checksums\.json|data|data\.csv|data\.npz|samples\.csv|unreadable\.csv|trained-on\.csv|"
    r"targets(\.\d+)?\.bin"
)


@dataclass(frozen=True)
class RunFolder(RunPaths):
    """A run on disk."""

    @contextmanager
    def recorded(self, path: Path) -> Iterator[Path]:
        """Yield an empty temporary file that replaces `path` when the block ends, and records its checksum.

        Only the process of rank 0 writes; the file of the others is discarded.
        """
        if distributed.rank():
            with TemporaryDirectory() as discarded:
                yield Path(discarded) / path.name
        else:
            with checksums.recorded(self.path, path) as draft:
                yield draft

    def write_json(self, path: Path, content: Mapping[str, Any], *, indent: int | None = 2) -> None:
        with self.recorded(path) as draft, atomic_write(draft) as file:
            json.dump(content, file, indent=indent)

    def read_json(self, path: Path, kind: Any) -> Any:
        """Read an object of this kind (contents.py). Returns None if the file does not exist."""
        content = self.read_bytes(path)
        try:
            return None if content is None else _checked(parse(content), kind)
        except ValueError as error:
            raise UserError(f"{path} is damaged: {error}; delete it and run the command that wrote it again") from error

    def add_json(self, path: Path, kind: Any, key: str, entry: Mapping[str, Any]) -> None:
        """Write one of the entries of a file whose entries are of this kind."""
        self.write_json(path, {**(self.read_json(path, dict[str, kind]) or {}), key: entry})

    def write_rows(self, path: Path, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        with self.recorded(path) as draft:
            write_table(draft, columns, rows)

    def read_rows(self, path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
        """Read the rows of a table. Returns none if the file does not exist."""
        content = self.read_bytes(path)
        return [] if content is None else parse_table(path, content, columns)

    def read_bytes(self, path: Path) -> bytes | None:
        """Read a file that was recorded. Returns None if it does not exist."""
        return checksums.read_recorded(self.path, path)

    def remove(self, path: Path) -> None:
        """Remove a file that was recorded."""
        checksums.remove(self.path, path)

    def check_recorded(self, path: Path) -> None:
        """Raise a UserError if a file was changed since it was written, or is missing."""
        checksums.check_recorded(self.path, path)

    def write_tensors(self, path: Path, tensors: "Mapping[str, Tensor]") -> None:
        with self.recorded(path) as draft:
            write_tensors(draft, tensors)

    @contextmanager
    def tensors_of(self, path: Path) -> Iterator["dict[str, Tensor]"]:
        """Yield the tensors of a .safetensors file that was recorded.

        Raises:
            UserError: If it was changed, cannot be read, or does not fit what the block does with it.
        """
        from safetensors.torch import load_file

        self.check_recorded(path)
        try:
            yield load_file(path)
        except Exception as error:  # readers and networks raise many types of errors on wrong content
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"{path} is damaged: {reason}; delete it and run the command that wrote it again"
            ) from error

    def check_free(self) -> None:
        """Raise a UserError if a new run cannot be started here. Files of an aborted start do not matter."""
        if distributed.rank() == 0 and (
            self.exists or not all(_BEFORE_THE_START.fullmatch(path.name) for path in self.path.iterdir())
        ):
            remedy = "add --resume to resume it, or give another --out" if self.exists else "give another --out"
            raise UserError(f"{self.path} is not empty; {remedy}")

    def check_writable(self) -> None:
        """Raise a UserError before long work if its results could not be written here."""
        nearest = next(path for path in (self.path, *self.path.absolute().parents) if path.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK):
            raise UserError(
                f"{self.path} cannot be written, because {nearest} is not a writable folder; choose another"
            )

    def locked(self) -> AbstractContextManager[None]:
        """Keep other processes from training here. A folder in which no run was started is removed again."""
        return folder_lock(self.path, lambda: self.exists)

    def write_run(self, content: Mapping[str, Any]) -> None:
        self.write_json(self.settings_file, {"format": FORMAT, **content})

    def read_run(self) -> dict[str, Any]:
        try:
            check_tree(self.path)
            read = self.read_bytes(self.settings_file) if self.exists else None
        except (FileNotFoundError, NotADirectoryError):
            read = None
        if read is None:
            raise UserError(f"{self.path} is not a run folder: it has no run.json; give the folder that train made")
        try:
            content = _checked(parse(read), dict[str, Any])
            if content.get("format", 1) != FORMAT:
                raise UserError(
                    f"{self.settings_file} was made by another version of selfadapt (format "
                    f"{content.get('format', 1)!r:.40}, this one reads {FORMAT}); train again in another folder, or "
                    "use that version"
                )
            check(content, contents.Run)
            labelled = content["settings"]["kind"] == "labels"
            if "result" in content:
                check(content["result"], contents.LabelledResult if labelled else contents.PretrainingResult)
        except ValueError as error:
            raise UserError(f"{self.settings_file} is damaged: {error}") from error
        checksums.warn_if_missing(self.path, self.settings_file)
        return cast(dict[str, Any], content)

    def read_metrics(self) -> list[dict[str, Any]]:
        """Read the finished epochs.

        Raises:
            UserError: If the file is damaged, or lacks epochs of a finished run.
        """
        records = read_records(self.metrics_file)
        result = self.read_run().get("result", {}) if self.exists else {}
        if len(records) != result.get("epochs", len(records)):
            raise UserError(
                f"{self.metrics_file} holds {len(records)} of {result['epochs']} epochs; restore it, or resume the run "
                "with --resume, which rebuilds this file from the checkpoint"
            )
        return records

    def write_samples(self, rows: Iterable[Sequence[str]]) -> None:
        write_table(self.samples_file, SAMPLE_COLUMNS, rows)

    def read_samples(self) -> list[dict[str, str]]:
        return read_table(self.samples_file, SAMPLE_COLUMNS)

    def samples_sha256(self) -> str:
        return sha256_of(self.samples_file)

    def recorded_samples(self) -> list[dict[str, str]]:
        """Read the samples, and raise a UserError if the file was changed after the run started."""
        rows = self.read_samples()
        if self.samples_sha256() != self.read_run()["data"]["samples_sha256"]:
            raise UserError(f"{self.samples_file} was changed after the run started; restore it")
        return rows

    def write_unreadable(self, rows: Iterable[tuple[str, str]]) -> None:
        self.write_rows(self.unreadable_file, ("id", "reason"), rows)

    def read_unreadable(self) -> dict[str, str]:
        """Read why files could not be read, by id."""
        return {row["id"]: row["reason"] for row in self.read_rows(self.unreadable_file, ("id", "reason"))}

    def forget_unreadable(self) -> None:
        if distributed.rank() == 0:
            self.remove(self.unreadable_file)

    def write_labels(self, rows: Iterable[Sequence[str]], *, truth_known: bool) -> None:
        write_table(self.labels_file, LABEL_COLUMNS if truth_known else LABEL_COLUMNS[:-1], rows)

    def read_labels(self) -> list[dict[str, str]]:
        """Read labels.csv. Columns that older files lack are empty."""
        rows = read_table(self.labels_file, _FIRST_COLUMNS)
        missing = dict.fromkeys((name for name in _LATER_COLUMNS if rows and name not in rows[0]), "")
        return [{**missing, **row} for row in rows] if missing else rows

    def write_duplicates(self, rows: Iterable[Sequence[str]]) -> None:
        self.write_rows(self.duplicates_file, DUPLICATE_COLUMNS, rows)

    def read_duplicates(self) -> list[DuplicateGroup[str]]:
        """Read the groups of duplicates, by id. Older files have no column `kind`: all are of the same image."""
        members: dict[str, list[str]] = {}
        kinds: dict[str, Kind] = {}
        for row in self.read_rows(self.duplicates_file, DUPLICATE_COLUMNS[:-1]):
            members.setdefault(row["group"], []).append(row["id"])
            kinds[row["group"]] = _kind(row.get("kind") or "same image", self.duplicates_file)
        return [DuplicateGroup(tuple(own), kinds[group]) for group, own in members.items()]

    def write_transition(self, classes: Sequence[str], rows: Sequence[Sequence[float]]) -> None:
        """Write the probability of each given label (column) for each true class (row)."""
        lines = ([name, *(f"{p:.6f}" for p in row)] for name, row in zip(classes, rows, strict=True))
        self.write_rows(self.transition_file, ["true", *classes], lines)

    def read_transition(self, classes: Sequence[str]) -> list[list[float]] | None:
        """Read the matrix of a run with these classes. Returns None if the file does not exist."""
        content = self.read_bytes(self.transition_file)
        if content is None:
            return None
        try:
            header, *rows = csv.reader(StringIO(content.decode(), newline="")) or [[]]
            if header[1:] != list(classes) or [row[0] for row in rows] != list(classes):
                raise ValueError("its classes are not those of the run")
            return [[_share(row[column + 1]) for column in range(len(classes))] for row in rows]
        except (ValueError, IndexError, csv.Error) as error:
            raise UserError(f"{self.transition_file} is damaged: {error}; run selfadapt audit again") from error


def write_tensors(path: Path, tensors: "Mapping[str, Tensor]", metadata: dict[str, str] | None = None) -> None:
    """Write tensors atomically: as safetensors, or in the format of torch for .pt and .pth."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import save

    content = {name: tensor.contiguous() for name, tensor in tensors.items()}
    try:
        with atomic_path(path) as draft:
            if path.suffix in (".pt", ".pth"):
                torch.save(content, draft)
            else:
                draft.write_bytes(save(content, metadata))  # with default permissions, unlike save_file
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{path} cannot be written: {error}") from error


def _checked(content: Any, kind: Any) -> Any:
    check(content, kind)
    return content


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError(f"{text} is not within 0..1")
    return value


def _kind(text: str, path: Path) -> Kind:
    if text in get_args(Kind):
        return cast(Kind, text)
    raise UserError(f"{path}: {text!r} is not a kind of duplicates; choose one of {', '.join(get_args(Kind))}")
