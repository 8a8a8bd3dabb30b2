"""Table 12: self-adaptive training together with symmetric cross entropy."""

from selfadapt.recipes.recipe import Entry, Experiment, Recipe, Settings, Trial
from selfadapt.recipes.scales import CIFAR, SAT, SMALL, SMALL_MINUTES, SMALL_SAT, WHOLE
from selfadapt.recipes.tables.table1 import for_cell

PUBLISHED = {
    "SCE": (90.15, 86.74, 80.80, 46.28, 71.26, 66.41, 57.43, 26.41),
    "ours": (94.14, 92.64, 89.23, 78.58, 75.77, 71.38, 62.69, 38.72),
    "ours + SCE": (94.39, 93.29, 89.83, 79.13, 76.57, 72.16, 64.12, 39.61),
}
COLUMNS = tuple((data, rate) for data in ("CIFAR10", "CIFAR100") for rate in (0.2, 0.4, 0.6, 0.8))


def _experiment(
    wanted: tuple[tuple[str, float], ...], shared: Settings, adaptive: Settings, minutes: float | None = None
) -> Experiment:
    methods: dict[str, Settings] = {
        "SCE": {"method": "sce"},
        "ours": adaptive,
        "ours + SCE": {**adaptive, "method": "sat-sce", "reverse_weight": 0.1},
    }
    trials, entries = [], []
    for row, method in methods.items():
        for (data, rate), published in zip(COLUMNS, PUBLISHED[row], strict=True):
            if (data, rate) not in wanted:
                continue
            name, column = f"{row} {data} {rate}", f"{data} {rate}"
            own = {"data": data.lower(), "noise": f"symmetric:{rate}", **for_cell(str(method["method"]), column)}
            trials.append(Trial(name=name, settings={**shared, **method, **own}))
            entries.append(Entry(row=row, column=column, trial=name, published=published))
    return Experiment(trials=tuple(trials), entries=tuple(entries), minutes=minutes)


RECIPE = Recipe(
    name="table12",
    title="Table 12: with symmetric cross entropy",
    effect="The symmetric loss adds up to 1.5 points to self-adaptive training.",
    paper=_experiment(COLUMNS, {**CIFAR, **WHOLE}, SAT),
    laptop=_experiment((("CIFAR10", 0.4), ("CIFAR10", 0.8)), SMALL, SMALL_SAT, minutes=6 * SMALL_MINUTES),
    notes=("w1 = 1 and w2 = 0.1 as in the paper; the authors' script has 0.3.",),
)
