"""Figures 6, 7 and 12: recovered labels, sample weights, and accuracy by whether noise changed a sample."""

from collections.abc import Iterator
from dataclasses import replace

from selfadapt.recipes.figures.fig1 import TESTED
from selfadapt.recipes.recipe import Cell, Entry, Panels, Recipe, RunFigure, Settings, Trial, cited, experiment
from selfadapt.recipes.scales import (
    AUGMENTED,
    AUGMENTED_MINUTES,
    AUGMENTED_SAT,
    CIFAR,
    SAT,
    SMALL,
    SMALL_MINUTES,
    SMALL_SAT,
    WHOLE,
    erm_and,
)

_PAPER: Settings = {**CIFAR, "data": "cifar10", "noise": "symmetric:0.4"}
_SMALL: Settings = {**SMALL, "data": "fashion-mnist", "limit": 10_000, "batch_size": 250, "noise": "symmetric:0.4"}
_READING = (
    "A recovered label is the most likely class of the target, after removing what is left of the given label in it. "
    "After the paper's 140 updates nothing is left."
)
_ELSEWHERE = (
    "ImageNet's labels are recovered in table4. At laptop scale 10,000 images of Fashion-MNIST replace CIFAR10."
)
_PUBLISHED = {"CIFAR10": 94.65}


def _recovered(column: str, settings: Settings) -> Iterator[Cell]:
    trial = Trial(name="ours", settings=settings)
    yield trial, Entry(row="given labels", column=column, value="1 - result/noise/actual")
    yield trial, Entry(row="ours", column=column, value="result/label_recovery", published=_PUBLISHED.get(column))
    yield from cited({"ours": [None if name == column else own for name, own in _PUBLISHED.items()]}, _PUBLISHED)


def _portions(shared: Settings, ours: Settings) -> Iterator[Cell]:
    for row, own in erm_and(ours).items():
        trial = Trial(name=row, settings={**shared, **own, **TESTED})
        for column, key in (("untouched", "clean_accuracy_true"), ("corrupted", "corrupted_accuracy_true")):
            yield trial, Entry(row=row, column=column, value=f"last/{key}")
            yield trial, Entry(row=row, column=f"{column}, peak", value=f"peak/{key}")


FIG6 = Recipe(
    name="fig6",
    title="Figure 6: recovered labels against the truth",
    effect="Most wrong labels are corrected, in every class.",
    paper=experiment(_recovered("CIFAR10", {**_PAPER, **WHOLE, **SAT})),
    laptop=experiment(_recovered("Fashion-MNIST", {**_SMALL, **SMALL_SAT}), minutes=2 * SMALL_MINUTES),
    drawing=RunFigure(name="recovered"),
    notes=(_READING, _ELSEWHERE),
)
FIG7 = replace(
    FIG6,
    name="fig7",
    title="Figure 7: mean sample weights by true and recovered label",
    effect="Samples whose label was recovered have larger weights than the others, in every class.",
    drawing=RunFigure(name="weights"),
    notes=("The table has the recovered accuracy of the same run.", _READING, _ELSEWHERE),
)
FIG12 = Recipe(
    name="fig12",
    title="Figure 12: accuracy by whether noise changed a sample, 40 % label noise",
    effect="Ordinary training first fits the true labels of corrupted samples and then forgets them; self-adaptive "
    "training keeps fitting them.",
    paper=experiment(_portions(_PAPER, SAT)),
    laptop=experiment(_portions({**AUGMENTED, "noise": "symmetric:0.4"}, AUGMENTED_SAT), minutes=2 * AUGMENTED_MINUTES),
    drawing=Panels(curves="portions", columns=2),
    notes=(
        "A sample counts as corrupted if noise changed its label. The peak is the highest value over the epochs.",
        "At laptop scale: 2,000 images of Fashion-MNIST at 14 pixels with crops and flips, as in fig3.",
    ),
)
