"""Table 12: self-adaptive training together with symmetric cross entropy."""

from collections.abc import Collection, Iterator

from selfadapt.recipes.recipe import Cell, Entry, Recipe, Settings, Trial, experiment
from selfadapt.recipes.scales import CIFAR, SAT, SMALL, SMALL_MINUTES, SMALL_SAT, WHOLE
from selfadapt.recipes.tables.table1 import for_cell

PUBLISHED = {
    "SCE": (90.15, 86.74, 80.80, 46.28, 71.26, 66.41, 57.43, 26.41),
    "ours": (94.14, 92.64, 89.23, 78.58, 75.77, 71.38, 62.69, 38.72),
    "ours + SCE": (94.39, 93.29, 89.83, 79.13, 76.57, 72.16, 64.12, 39.61),
}
COLUMNS = tuple((data, rate) for data in ("CIFAR10", "CIFAR100") for rate in (0.2, 0.4, 0.6, 0.8))


def _cells(wanted: Collection[tuple[str, float]], shared: Settings, ours: Settings) -> Iterator[Cell]:
    methods: dict[str, Settings] = {
        "SCE": {"method": "sce"},
        "ours": ours,
        "ours + SCE": {**ours, "method": "sat-sce", "reverse_weight": 0.1},
    }
    for row, method in methods.items():
        for (data, rate), published in zip(COLUMNS, PUBLISHED[row], strict=True):
            if (data, rate) in wanted:
                column = f"{data} {rate}"
                own = {"data": data.lower(), "noise": f"symmetric:{rate}", **for_cell(method["method"], column)}
                trial = Trial(name=f"{row} {column}", settings={**shared, **method, **own})
                yield trial, Entry(row=row, column=column, published=published)


RECIPE = Recipe(
    name="table12",
    title="Table 12: with symmetric cross entropy",
    effect="The symmetric loss adds up to 1.5 points to self-adaptive training.",
    paper=experiment(_cells(COLUMNS, {**CIFAR, **WHOLE}, SAT)),
    laptop=experiment(_cells([("CIFAR10", 0.4), ("CIFAR10", 0.8)], SMALL, SMALL_SAT), minutes=6 * SMALL_MINUTES),
    notes=("w1 = 1 and w2 = 0.1 as in the paper; the authors' script has 0.3.",),
)
