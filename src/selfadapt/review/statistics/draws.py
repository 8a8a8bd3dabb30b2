"""Random samples for measuring: a population and a random order of it, fixed at the first draw and stored in a file.

    review/suggestions.csv   the suggestions on undecided training labels, most likely wrong first; each with the first
                             depth of the grid that contains it, and its position in the random order ("turn")
    review/SPLIT.csv         all labels of a split, in the same format

The order follows from the seed of the run. Only decisions in this order generalise to the samples that nobody reviewed.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from selfadapt.core.errors import UserError
from selfadapt.core.rng import seeded
from selfadapt.evaluation.label_errors.report import LabelErrorReport
from selfadapt.review.statistics.precision_bound import Numbers, depth_grid
from selfadapt.run_folder.folder import RunFolder

SUGGESTIONS = "suggestions"
_COLUMNS = ("id", "given", "suggested", "depth", "turn")
_REMEDY = "restore the file, or remove it and draw again in selfadapt review"


@dataclass(frozen=True, kw_only=True)
class Draw:
    """A population of N labels, most likely wrong first, and the random order in which they are reviewed."""

    of: str  # SUGGESTIONS, or a split
    ids: Sequence[str]
    given: Sequence[str]
    suggested: Sequence[str]
    order_N: Numbers  # positions in this population, in random order
    depth_J: Numbers  # the number of labels at each depth

    @cached_property
    def in_order(self) -> list[str]:
        """The ids in random order."""
        return [self.ids[position] for position in self.order_N.tolist()]


def read_draw(folder: RunFolder, of: str) -> Draw | None:
    """The sample that was drawn; None before the first draw."""
    path = folder.draw_file(of)
    rows = folder.read_rows(path, _COLUMNS)
    return _parse(path, of, rows) if rows else None


def _parse(path: Path, of: str, rows: Sequence[Mapping[str, str]]) -> Draw:
    turns = _whole_numbers(path, rows, "turn", 0, len(rows) - 1)
    depths = _whole_numbers(path, rows, "depth", 1, len(rows))
    if len(np.unique(turns)) < len(turns):
        raise UserError(f"{path}: two rows have the same turn; {_REMEDY}")
    return Draw(
        of=of,
        ids=[row["id"] for row in rows],
        given=[row["given"] for row in rows],
        suggested=[row["suggested"] for row in rows],
        order_N=np.argsort(turns),
        depth_J=np.cumsum(np.bincount(depths)[1:]),
    )


def _whole_numbers(path: Path, rows: Sequence[Mapping[str, str]], column: str, least: int, most: int) -> Numbers:
    for line, row in enumerate(rows, start=2):
        text = row[column]
        if not (text.isascii() and text.isdecimal() and len(text) < 16 and least <= int(text) <= most):
            raise UserError(f"{path}, line {line}: {column} {text!r} is not a number from {least} to {most}; {_REMEDY}")
    return np.array([int(row[column]) for row in rows])


def draw(folder: RunFolder, of: str, report: LabelErrorReport, decided: Container[str]) -> Draw:
    """Return the random sample of this name. It is drawn and stored at the first call.

    Raises:
        UserError: If there is nothing to draw from.
    """
    found = read_draw(folder, of)
    if found is not None:
        return found
    if of == SUGGESTIONS:
        train = report.rows_of("train")
        rows = [row for row in train[report.is_error[train]].tolist() if report.ids[row] not in decided]
        depth_J = depth_grid(len(rows))
    else:
        rows = report.rows_of(of).tolist()
        depth_J = np.array([len(rows)])
    if not rows:
        raise UserError("nothing to draw: all suggestions on training labels are decided")
    generator = seeded(int(folder.read_run()["seed"]), "measure", of)
    turn_N = torch.empty(len(rows), dtype=torch.int64)
    turn_N[torch.randperm(len(rows), generator=generator)] = torch.arange(len(rows))
    depth_N = np.searchsorted(depth_J, np.arange(len(rows)), side="right") + 1
    lines = [
        (report.ids[row], report.given_labels[row], report.suggested_labels[row], str(depth), str(turn))
        for row, depth, turn in zip(rows, depth_N.tolist(), turn_N.tolist(), strict=True)
    ]
    path = folder.draw_file(of)
    folder.write_rows(path, _COLUMNS, lines)
    return _parse(path, of, [dict(zip(_COLUMNS, line, strict=True)) for line in lines])
