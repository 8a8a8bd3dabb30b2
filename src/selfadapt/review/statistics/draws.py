"""Samples that are drawn to measure: populations and their random order, fixed at the first draw and kept in files.

    review/suggestions.csv   the suggestions on training labels that nobody had decided about, most suspicious first;
                             each with the depth of the grid that it first belongs to, and its turn
    review/PART.csv          all labels of a part, likewise

The order comes from the run's seed. Only what is taken in this order speaks for what was not looked at.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from selfadapt.core.errors import UserError
from selfadapt.core.rng import seeded
from selfadapt.review.statistics.precision_bound import Numbers, depth_grid
from selfadapt.run_folder.csv_tables import read_table, write_table
from selfadapt.run_folder.folder import RunFolder
from selfadapt.run_folder.labels_file import Verdicts

SUGGESTIONS = "suggestions"
_COLUMNS = ("id", "given", "suggested", "depth", "turn")
_REMEDY = "restore the file, or remove it and draw anew in selfadapt review"


@dataclass(frozen=True, kw_only=True)
class Draw:
    """A population of N in the order of suspicion, and the order in which it is looked at."""

    of: str  # SUGGESTIONS, or a part
    ids: Sequence[str]
    given: Sequence[str]
    suggested: Sequence[str]
    order_N: Numbers  # places in this population, in the order of their turns
    depth_J: Numbers  # how many belong to each depth

    @cached_property
    def in_turn(self) -> list[str]:
        """The ids in the order in which they are looked at."""
        return [self.ids[place] for place in self.order_N.tolist()]


def read_draw(folder: RunFolder, of: str) -> Draw | None:
    """What was drawn; None if nothing was yet."""
    path = folder.draw_file(of)
    rows = read_table(path, _COLUMNS) if path.exists() else []
    if not rows:
        return None
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
            raise UserError(f"{path}, line {line}: {column} {text!r} is no number within {least}..{most}; {_REMEDY}")
    return np.array([int(row[column]) for row in rows])


def draw(folder: RunFolder, of: str, verdicts: Verdicts, decided: Container[str]) -> Draw:
    """The draw of this name: the one that was made, or one that is made now and stays.

    Raises a UserError where there is nothing to draw.
    """
    found = read_draw(folder, of)
    if found is not None:
        return found
    if of == SUGGESTIONS:
        suspects = np.flatnonzero(verdicts.suspect_N & (verdicts.part_N == verdicts.parts.index("train"))).tolist()
        rows = [row for row in suspects if verdicts.ids[row] not in decided]
        depth_J = depth_grid(len(rows))
    else:
        rows = verdicts.rows_of(of).tolist()
        depth_J = np.array([len(rows)])
    if not rows:
        raise UserError("nothing to draw: no suggestion on a training label is undecided")
    generator = seeded(int(folder.read_run()["seed"]), "measure", of)
    turn_N = torch.empty(len(rows), dtype=torch.int64)
    turn_N[torch.randperm(len(rows), generator=generator)] = torch.arange(len(rows))
    depth_N = np.searchsorted(depth_J, np.arange(len(rows)), side="right") + 1
    classes: Sequence[Any] = verdicts.classes
    lines = [
        (verdicts.ids[row], classes[verdicts.given_N[row]], classes[verdicts.suggested_N[row]], str(depth), str(turn))
        for row, depth, turn in zip(rows, depth_N.tolist(), turn_N.tolist(), strict=True)
    ]
    folder.draw_file(of).parent.mkdir(exist_ok=True)
    write_table(folder.draw_file(of), _COLUMNS, lines)
    made = read_draw(folder, of)
    assert made is not None
    return made
