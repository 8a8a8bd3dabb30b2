"""Accuracy under corruption: a table by kind and level, and its summaries.

mean at a level            over the 15 kinds, as in Table 13 of the paper
corruption error           for each kind, the errors of a network, summed over levels, divided by those of a reference
                           (Hendrycks and Dietterich, 2019): below 1 the network is more robust than the reference
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.data.imagenet_c.corruptions import KINDS, LEVELS

Table = Mapping[str, Mapping[int, float]]  # accuracy by kind and level


def corruption_table(
    accuracy: Callable[[str, int], float], on_progress: ProgressCallback = no_progress
) -> dict[str, dict[int, float]]:
    """Measure the accuracy for each kind at each level."""
    cells = [(kind, level) for kind in KINDS for level in LEVELS]
    table: dict[str, dict[int, float]] = {kind: {} for kind, _ in cells}
    for done, (kind, level) in enumerate(cells, start=1):
        table[kind][level] = accuracy(kind, level)
        on_progress(done, len(cells))
    return table


def mean_by_level(table: Table) -> dict[int, float]:
    """Return the mean over kinds at each level."""
    values = _values(table)
    return dict(zip(next(iter(table.values())), values.mean(0).tolist(), strict=True))


def mean_accuracy(table: Table) -> float:
    return _values(table).mean().item()


def corruption_errors(table: Table, reference: Table) -> dict[str, float]:
    """Return the corruption error of each kind; infinite if only the reference makes no error."""
    if {kind: tuple(row) for kind, row in table.items()} != {kind: tuple(row) for kind, row in reference.items()}:
        raise UserError("the two runs were not measured under the same kinds and levels; measure both again")
    errors, others = ((1 - _values(each)).sum(1) for each in (table, reference))
    ratios = torch.where(others > 0, errors / others, torch.where(errors > 0, torch.inf, 1.0))
    return dict(zip(table, ratios.tolist(), strict=True))


def _values(table: Table) -> Tensor:
    return torch.tensor([list(row.values()) for row in table.values()], dtype=torch.float64)
