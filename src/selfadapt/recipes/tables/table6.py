"""Table 6: are several views of an image needed?"""

from collections.abc import Iterator

from selfadapt.recipes.probe_trials import BYOL, LONG_NOTES, MOCO, SAT, compared, linear, paper, probed
from selfadapt.recipes.recipe import Cell, OverEpochs, Recipe, Settings

PUBLISHED: dict[str, tuple[Settings, tuple[float, float]]] = {
    "MoCo v2, 1 view": ({**MOCO, "views": 1}, (46.36, 39.65)),
    "MoCo v2, 2 views": (MOCO, (91.68, 88.90)),
    "BYOL, 1 view": ({**BYOL, "views": 1}, (44.36, 42.60)),
    "BYOL, 2 views": (BYOL, (91.78, 89.60)),
    "ours, 1 view": (SAT, (92.27, 89.55)),
    "ours, 2 views": ({**SAT, "views": 2}, (91.56, 90.05)),
}


def _cells() -> Iterator[Cell]:
    for row, (settings, numbers) in PUBLISHED.items():
        for data, published in zip(("CIFAR10", "STL10"), numbers, strict=True):
            yield linear(paper(f"{row} {data}", {**settings, "data": data.lower()}), row, data, published)


RECIPE = Recipe(
    name="table6",
    title="Table 6: one view or two",
    effect="MoCo and BYOL learn poor features from one view; self-adaptive training needs no second view.",
    paper=probed(_cells()),
    laptop=compared({row: (own, numbers[0]) for row, (own, numbers) in PUBLISHED.items()}),
    drawing=OverEpochs(key="online_probe_held_out", description="online probe, held out (%)"),
    notes=(
        "STL10 has 105,000 images, labelled and unlabelled; the linear classifier uses the 5,000 labelled ones.",
        *LONG_NOTES,
    ),
)
