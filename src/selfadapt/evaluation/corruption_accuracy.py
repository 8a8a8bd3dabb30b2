"""Accuracy under corruption: a table by kind and level, and what is said of it in one number.

mean at a level            over the 15 kinds, as in Table 13 of the paper
mean corruption error      over the kinds, of the errors of a network, summed over levels, by those of another
                           (Hendrycks and Dietterich, 2019): below 1 it is the more robust of the two
"""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.data.imagenet_c.corruptions import KINDS, LEVELS

Table = Mapping[str, Mapping[int, float]]  # accuracy by kind and level


def shift_table(
    accuracy: Callable[[str, int], float],
    *,
    kinds: Iterable[str] = KINDS,
    levels: Iterable[int] = LEVELS,
    on_progress: ProgressCallback = no_progress,
) -> dict[str, dict[int, float]]:
    """Measure each kind at each level."""
    cells = [(kind, level) for kind in kinds for level in levels]
    table: dict[str, dict[int, float]] = {kind: {} for kind, _ in cells}
    for done, (kind, level) in enumerate(cells, start=1):
        table[kind][level] = accuracy(kind, level)
        on_progress(done, len(cells))
    return table


def mean_by_level(table: Table) -> dict[int, float]:
    """The mean over kinds at each level."""
    values = _values(table)
    return dict(zip(next(iter(table.values())), values.mean(0).tolist(), strict=True))


def mean_accuracy(table: Table) -> float:
    return _values(table).mean().item()


def corruption_errors(table: Table, other: Table) -> dict[str, float]:
    """The error of a network by that of the other, for each kind; infinite where only the other makes none."""
    if {kind: tuple(row) for kind, row in table.items()} != {kind: tuple(row) for kind, row in other.items()}:
        raise UserError("the two runs were not measured under the same kinds and levels; measure both again")
    errors, others = ((1 - _values(each)).sum(1) for each in (table, other))
    ratios = torch.where(others > 0, errors / others, torch.where(errors > 0, torch.inf, 1.0))
    return dict(zip(table, ratios.tolist(), strict=True))


def mean_corruption_error(table: Table, other: Table) -> float:
    errors = corruption_errors(table, other)
    return sum(errors.values()) / len(errors)


def _values(table: Table) -> Tensor:
    return torch.tensor([list(row.values()) for row in table.values()], dtype=torch.float64)
