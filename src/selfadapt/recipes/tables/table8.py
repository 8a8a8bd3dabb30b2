"""Table 8: linear evaluation on CIFAR10, CIFAR100 and STL10 with AlexNet and ResNet-50."""

from collections.abc import Iterator

from selfadapt.recipes.probe_trials import BYOL, LONG_NOTES, MOCO, SAT, compared, linear, paper, probed
from selfadapt.recipes.recipe import Cell, Recipe, Settings, cited

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


def _cells() -> Iterator[Cell]:
    yield from cited(CITED, COLUMNS, part="AlexNet")
    rows: list[tuple[str, str, Settings, tuple[float, ...]]] = [
        ("AlexNet", "ours", SAT, OURS["AlexNet"]),
        *(("ResNet-50", row, settings, numbers) for row, (settings, numbers) in TWO_VIEWS.items()),
        ("ResNet-50", "ours", SAT, OURS["ResNet-50"]),
    ]
    for part, row, settings, numbers in rows:
        model = {"AlexNet": "alexnet", "ResNet-50": "resnet50"}[part]
        for data, published in zip(COLUMNS, numbers, strict=True):
            trial = paper(f"{part} {row} {data}", {**settings, "model": model, "data": data.lower()})
            yield linear(trial, row, data, published, part)


RECIPE = Recipe(
    name="table8",
    title="Table 8: linear evaluation, AlexNet and ResNet-50",
    effect="With one view self-adaptive training is above methods that use two.",
    paper=probed(_cells()),
    laptop=compared(
        {row: (settings, numbers[0]) for row, (settings, numbers) in TWO_VIEWS.items()}
        | {"ours": (SAT, OURS["ResNet-50"][0])}
    ),
    notes=(
        "SplitBrain, DeepCluster, InstDisc, AND, SeLa and CMC are shown as published; they are not run.",
        *LONG_NOTES,
        "The published numbers at laptop scale are those of ResNet-50.",
    ),
)
