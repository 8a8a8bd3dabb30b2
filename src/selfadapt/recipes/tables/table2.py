"""Table 2: the contribution of the two components."""

from collections.abc import Iterator
from itertools import product

from selfadapt.recipes.recipe import Cell, Entry, Recipe, Settings, Trial, experiment
from selfadapt.recipes.scales import CIFAR, SAT, SMALL, SMALL_DATA, SMALL_MINUTES, SMALL_SAT, WHOLE

METHODS = {"ours": "sat-paper", "without re-weighting": "sat-no-weights", "without moving average": "sat-no-average"}
PUBLISHED = {
    "ours": (92.64, 78.58, 71.38, 38.72),
    "without re-weighting": (92.49, 78.10, 69.52, 36.78),
    "without moving average": (72.00, 28.17, 50.93, 11.57),
}
RATES = (0.4, 0.8)
CELLS = tuple(product(("CIFAR10", "CIFAR100"), RATES))
SMALL_CELLS = tuple(product(SMALL_DATA, RATES))


def _cells(cells: tuple[tuple[str, float], ...], shared: Settings, ours: Settings) -> Iterator[Cell]:
    for row, method in METHODS.items():
        published = dict(zip(CELLS, PUBLISHED[row], strict=True))
        for data, rate in cells:
            own = {"data": data.lower(), "noise": f"symmetric:{rate}", **ours, "method": method}
            trial = Trial(name=f"{row} {data} {rate}", settings={**shared, **own})
            yield trial, Entry(row=row, column=f"{data} {rate}", published=published.get((data, rate)))


RECIPE = Recipe(
    name="table2",
    title="Table 2: influence of the two components",
    effect="Without re-weighting accuracy is slightly lower; without the moving average it falls to that of ordinary "
    "training.",
    paper=experiment(_cells(CELLS, {**CIFAR, **WHOLE}, SAT)),
    laptop=experiment(_cells(SMALL_CELLS, SMALL, SMALL_SAT), minutes=12 * SMALL_MINUTES),
    notes=(
        "Without the moving average, targets in Algorithm 2 stay equal to the labels: that is ordinary training.",
        "At laptop scale Fashion-MNIST replaces CIFAR100.",
    ),
)
