"""Figures 3 and 13: generalisation and clean validation error over the noise rate, with and without augmentation."""

from collections.abc import Iterator
from itertools import product

from selfadapt.recipes.figures.fig1 import KINDS, TESTED
from selfadapt.recipes.recipe import Cell, Entry, Experiment, OverColumns, Recipe, Settings, Trial, experiment
from selfadapt.recipes.scales import AUGMENTED, AUGMENTED_MINUTES, CIFAR, HALF, PERCEPTRON, SAT, erm_and

ERRORS = {
    "generalisation error": "last/train_accuracy_given - last/validation_accuracy_given",
    "clean validation error": "1 - last/validation_accuracy_true",
    "lowest clean validation error": "1 - peak/validation_accuracy_true",
}
CLEAN_STOPPED_EARLY = "clean validation error, stopped early"  # by noisy validation labels
RATES = tuple(number / 10 for number in range(10))
SMALL_RATES = (0.0, 0.2, 0.4, 0.6, 0.8)
WITHOUT: Settings = {"augment": "none", "start_epoch": 25, "momentum": 0.7}  # Appendix C.2


def _cells(rates: tuple[float, ...], shared: Settings, ours: Settings) -> Iterator[Cell]:
    for (row, method), (corruption, kind), rate in product(erm_and(ours).items(), KINDS.items(), rates):
        name = f"{row} {kind} {rate}" if rate else f"{row} clean"  # without noise all kinds are the same
        noise = f"{kind}:{rate}" if rate else "symmetric:0"
        trial = Trial(name=name, settings={**shared, **method, **TESTED, "noise": noise})
        for part, value in ERRORS.items():
            yield trial, Entry(part=part, row=f"{row}, {corruption}", column=f"{rate:g}", value=value)
        if row == "ERM":
            value = "1 - early_stopping/validation_accuracy_true"
            yield trial, Entry(part=CLEAN_STOPPED_EARLY, row=f"{row}, {corruption}", column=f"{rate:g}", value=value)


def _recipe(name: str, title: str, paper: Experiment, laptop: Experiment, note: str) -> Recipe:
    return Recipe(
        name=name,
        title=title,
        effect="The errors of ordinary training grow with the noise rate; those of self-adaptive training are much "
        "smaller at every rate and for every kind of noise.",
        paper=paper,
        laptop=laptop,
        drawing=OverColumns(description="error (%)", columns="noise rate", dashed="ERM"),
        rows="method, noise",
        notes=(
            "Generalisation error: accuracy on the noisy training set minus accuracy on the noisy validation set.",
            "Errors are those of the last epoch. The lowest over the epochs is shown too, and for ordinary training "
            "that of the epoch with the best accuracy on the noisy validation set.",
            note,
        ),
    )


_SMALL_WITHOUT: Settings = {**HALF, **PERCEPTRON, "limit": 5_000}
_SMALL_SAT: Settings = {"method": "sat-paper", "start_epoch": 60, "momentum": 0.9}
_SMALL_SAT_WITHOUT: Settings = {"method": "sat-paper", "start_epoch": 12, "momentum": 0.49}

FIG3 = _recipe(
    "fig3",
    "Figure 3: errors over the noise rate",
    experiment(_cells(RATES, {**CIFAR, "data": "cifar10"}, SAT)),
    experiment(_cells(SMALL_RATES, AUGMENTED, _SMALL_SAT), minutes=34 * AUGMENTED_MINUTES),
    "At laptop scale the whitened network is trained on 2,000 images of Fashion-MNIST at 14 pixels, few and small "
    "enough to be memorised despite crops and flips. E_s is 60 of 100 epochs: earlier, the network has not reached its "
    "best accuracy on noisy validation data.",
)
FIG13 = _recipe(
    "fig13",
    "Figure 13: errors over the noise rate, without augmentation",
    experiment(_cells(RATES, {**CIFAR, "data": "cifar10", "augment": "none"}, {**SAT, **WITHOUT})),
    experiment(_cells(SMALL_RATES, _SMALL_WITHOUT, _SMALL_SAT_WITHOUT), minutes=25),
    "At laptop scale a perceptron with two hidden layers of 256 is trained on 5,000 images of Fashion-MNIST.",
)
