"""Table 2: what the two components of the approach bring."""

from itertools import product

from selfadapt.recipes.recipe import Entry, Experiment, Recipe, Settings, Trial
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


def _experiment(
    cells: tuple[tuple[str, float], ...], shared: Settings, adaptive: Settings, minutes: float | None = None
) -> Experiment:
    trials, entries = [], []
    for row, method in METHODS.items():
        published = dict(zip(CELLS, PUBLISHED[row], strict=True))
        for data, rate in cells:
            name = f"{row} {data} {rate}"
            own = {"data": data.lower(), "noise": f"symmetric:{rate}", **adaptive, "method": method}
            trials.append(Trial(name=name, settings={**shared, **own}))
            entries.append(Entry(row=row, column=f"{data} {rate}", trial=name, published=published.get((data, rate))))
    return Experiment(trials=tuple(trials), entries=tuple(entries), minutes=minutes)


RECIPE = Recipe(
    name="table2",
    title="Table 2: influence of the two components",
    effect="Without re-weighting accuracy is a little lower; without the moving average it falls to ordinary "
    "training's.",
    paper=_experiment(CELLS, {**CIFAR, **WHOLE}, SAT),
    laptop=_experiment(SMALL_CELLS, SMALL, SMALL_SAT, minutes=12 * SMALL_MINUTES),
    notes=(
        "Without the moving average targets stay the labels, by the letter of Algorithm 2: that is ordinary training.",
        "At laptop scale Fashion-MNIST stands for CIFAR100.",
    ),
)
