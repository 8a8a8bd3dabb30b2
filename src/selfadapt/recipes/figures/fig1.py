"""Figures 1 and 11: accuracy curves under four kinds of corruption, at 40 and at 80 %."""

from itertools import product

from selfadapt.recipes.recipe import Entry, Experiment, Panels, Recipe, Settings, Trial
from selfadapt.recipes.scales import CIFAR, SAT, SMALL, SMALL_DATA, SMALL_MINUTES, SMALL_SAT

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
TESTED: Settings = {"curves": "tested"}


def _experiment(
    rate: float, sets: dict[str, str], shared: Settings, adaptive: Settings, minutes: float | None = None
) -> Experiment:
    methods: dict[str, Settings] = {"ERM": {"method": "erm"}, "ours": adaptive}
    trials, entries = [], []
    for (data, source), (row, method), (words, kind) in product(sets.items(), methods.items(), KINDS.items()):
        name = f"{data}, {row}, {words}"
        settings = {**shared, **method, **TESTED, "data": source, "noise": f"{kind}:{rate}"}
        trials.append(Trial(name=name, settings=settings))
        entries += [
            Entry(part=f"{data}, {words}", row=row, column=column, trial=name, value=f"last/{key}")
            for column, key in CURVES.items()
        ]
    return Experiment(trials=tuple(trials), entries=tuple(entries), minutes=minutes)


def _recipe(name: str, title: str, rate: float) -> Recipe:
    return Recipe(
        name=name,
        title=title,
        effect="Ordinary training ends at nearly 100 % on the noisy training set and overfits; self-adaptive training "
        "ends near the share of clean data there, and higher on the clean sets.",
        paper=_experiment(rate, {"CIFAR10": "cifar10"}, CIFAR, SAT),
        laptop=_experiment(rate, SMALL_DATA, SMALL, SMALL_SAT, minutes=16 * 1.6 * SMALL_MINUTES),
        drawing=Panels(curves="four", columns=4),
        notes=(
            "The figure shows the whole training, the table its last epoch. The networks are tested on the four sets "
            "after each epoch, in evaluation mode and without augmentation. The paper gives no numbers but the text's.",
            "45,000 images train and the last 5,000 validate; noise is drawn before the split.",
            "At laptop scale 6,000 images of CIFAR10, and of Fashion-MNIST, which the paper has not.",
        ),
    )


FIG1 = _recipe("fig1", "Figure 1: accuracy curves, 40 % of the data corrupted", 0.4)
FIG11 = _recipe("fig11", "Figure 11: accuracy curves, 80 % of the data corrupted", 0.8)
