"""Table 8: linear evaluation on CIFAR10, CIFAR100 and STL10 with AlexNet and ResNet-50."""

from selfadapt.recipes.probe_trials import BYOL, LONG_NOTE, MOCO, PROTOCOL, RATE, SAT, compared, linear, paper, whole
from selfadapt.recipes.recipe import Experiment, Recipe, Settings, Trial, cited

COLUMNS = ("CIFAR10", "CIFAR100", "STL10")
CITED: dict[str, tuple[float | None, ...]] = {
    "SplitBrain": (67.1, 39.0, None),
    "DeepCluster": (77.9, 41.9, None),
    "InstDisc": (70.1, 39.4, None),
    "AND": (77.6, 47.9, None),
    "SeLa": (83.4, 57.4, None),
    "CMC": (None, None, 83.28),
}
OURS = {"AlexNet": (83.55, 59.80, 83.75), "ResNet-50": (94.04, 70.16, 92.60)}
TWO_VIEWS: dict[str, tuple[Settings, tuple[float, ...]]] = {
    "MoCo v2": (MOCO, (93.20, 69.48, 91.95)),
    "SimCLR": ({"method": "simclr", "views": 2}, (93.08, 67.92, 90.90)),
    "BYOL": (BYOL, (93.48, 68.48, 92.40)),
}


def _paper() -> Experiment:
    trials: list[Trial] = []
    entries = list(cited(CITED, COLUMNS, part="AlexNet"))
    run: list[tuple[str, str, Settings, tuple[float, ...]]] = [("AlexNet", "ours", SAT, OURS["AlexNet"])]
    run += [("ResNet-50", row, settings, numbers) for row, (settings, numbers) in TWO_VIEWS.items()]
    run.append(("ResNet-50", "ours", SAT, OURS["ResNet-50"]))
    for part, row, settings, numbers in run:
        model = {"AlexNet": "alexnet", "ResNet-50": "resnet50"}[part]
        for data, published in zip(COLUMNS, numbers, strict=True):
            trials.append(paper(f"{part} {row} {data}", {**settings, "model": model, "data": data.lower()}))
            entries.append(linear(part, row, data, trials[-1], published))
    return whole(trials, entries)


def _laptop() -> Experiment:
    rows = {row: (settings, numbers[0]) for row, (settings, numbers) in TWO_VIEWS.items()}
    return compared({**rows, "ours": (SAT, OURS["ResNet-50"][0])})


RECIPE = Recipe(
    name="table8",
    title="Table 8: linear evaluation, AlexNet and ResNet-50",
    effect="With one view self-adaptive training is above methods that take two.",
    paper=_paper(),
    laptop=_laptop(),
    notes=(
        "SplitBrain, DeepCluster, InstDisc, AND, SeLa and CMC are shown as published; they are not run.",
        RATE,
        PROTOCOL,
        f"{LONG_NOTE} The published numbers beside it are those of ResNet-50.",
    ),
)
