"""Figures 1 and 11: accuracy curves under four kinds of corruption, at 40 and at 80 %."""

from collections.abc import Iterator
from itertools import product

from selfadapt.recipes.recipe import Cell, Entry, Panels, Recipe, Settings, Trial, experiment
from selfadapt.recipes.scales import CIFAR, SAT, SMALL, SMALL_DATA, SMALL_MINUTES, SMALL_SAT, erm_and

KINDS = {
    "corrupted labels": "symmetric",
    "Gaussian images": "gaussian",
    "random pixels": "random-pixels",
    "shuffled pixels": "shuffled-pixels",
}
CURVES = {  # in the order of the paper's legend
    "noisy train": "train_accuracy_given",
    "clean train": "train_accuracy_true",
    "noisy validation": "validation_accuracy_given",
    "clean validation": "validation_accuracy_true",
}
PEAK = {name: f"{name}, peak" for name in ("clean train", "clean validation")}
SHARE_CLEAN = "share of clean data"
EARLY_STOPPED = "ERM, early stopping"  # the epoch with the best accuracy on the noisy validation set
TESTED: Settings = {"curves": "tested"}


def _cells(rate: float, sets: dict[str, str], shared: Settings, ours: Settings) -> Iterator[Cell]:
    for (data, source), (row, method), (corruption, kind) in product(
        sets.items(), erm_and(ours).items(), KINDS.items()
    ):
        settings = {**shared, **method, **TESTED, "data": source, "noise": f"{kind}:{rate}"}
        trial = Trial(name=f"{data}, {row}, {corruption}", settings=settings)
        part = f"{data}, {corruption}"
        for column, key in CURVES.items():
            yield trial, Entry(part=part, row=row, column=column, value=f"last/{key}")
        for column, peak in PEAK.items():
            yield trial, Entry(part=part, row=row, column=peak, value=f"peak/{CURVES[column]}")
        yield trial, Entry(part=part, row=row, column=SHARE_CLEAN, value="1 - result/noise/actual")
        if row == "ERM":
            for column, key in CURVES.items():
                yield trial, Entry(part=part, row=EARLY_STOPPED, column=column, value=f"early_stopping/{key}")


def _recipe(name: str, title: str, rate: float) -> Recipe:
    return Recipe(
        name=name,
        title=title,
        effect="Ordinary training ends at nearly 100 % on the noisy training set and overfits; self-adaptive training "
        "ends near the fraction of clean data there, and higher on the clean sets.",
        paper=experiment(_cells(rate, {"CIFAR10": "cifar10"}, CIFAR, SAT)),
        laptop=experiment(_cells(rate, SMALL_DATA, SMALL, SMALL_SAT), minutes=16 * 1.6 * SMALL_MINUTES),
        drawing=Panels(curves="four", columns=4),
        notes=(
            "The figure shows the whole training, the table its last epoch and the highest value over the epochs. The "
            "networks are tested on the four sets after each epoch, in evaluation mode and without augmentation. The "
            "paper gives no numbers except in its text.",
            "Early stopping takes the epoch with the best accuracy on the noisy validation set.",
            "45,000 images are for training and the last 5,000 for validation; noise is drawn before the split.",
            "At laptop scale: 6,000 images of CIFAR10, and of Fashion-MNIST, which is not in the paper.",
        ),
    )


FIG1 = _recipe("fig1", "Figure 1: accuracy curves, 40 % of the data corrupted", 0.4)
FIG11 = _recipe("fig11", "Figure 11: accuracy curves, 80 % of the data corrupted", 0.8)
