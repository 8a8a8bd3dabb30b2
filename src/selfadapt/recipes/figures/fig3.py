"""Figures 3 and 13: generalisation and clean validation error over the noise rate, with and without augmentation."""

from selfadapt.recipes.figures.fig1 import KINDS, TESTED
from selfadapt.recipes.recipe import Entry, Experiment, OverColumns, Recipe, Settings, Trial
from selfadapt.recipes.scales import AUGMENTED, AUGMENTED_MINUTES, AUGMENTED_SAT, CIFAR, HALF, PERCEPTRON, SAT

ERRORS = {
    "generalisation error": "last/train_accuracy_given - last/validation_accuracy_given",
    "clean validation error": "1 - last/validation_accuracy_true",
}
RATES = tuple(number / 10 for number in range(10))
SMALL_RATES = (0.0, 0.2, 0.4, 0.6, 0.8)
WITHOUT: Settings = {"augment": "none", "start_epoch": 25, "momentum": 0.7}  # Appendix C.2


def _experiment(
    rates: tuple[float, ...], shared: Settings, adaptive: Settings, minutes: float | None = None
) -> Experiment:
    methods: dict[str, Settings] = {"ERM": {"method": "erm"}, "ours": adaptive}
    trials: dict[str, Trial] = {}
    entries = []
    for row, method in methods.items():
        for words, kind in KINDS.items():
            for rate in rates:
                name = f"{row} {kind} {rate}" if rate else f"{row} clean"  # without noise the kinds are one
                noise = f"{kind}:{rate}" if rate else "symmetric:0"
                trials[name] = Trial(name=name, settings={**shared, **method, **TESTED, "noise": noise})
                entries += [
                    Entry(part=part, row=f"{row}, {words}", column=f"{rate:g}", trial=name, value=value)
                    for part, value in ERRORS.items()
                ]
    return Experiment(trials=tuple(trials.values()), entries=tuple(entries), minutes=minutes)


def _recipe(name: str, title: str, paper: Experiment, laptop: Experiment, *notes: str) -> Recipe:
    return Recipe(
        name=name,
        title=title,
        effect="The errors of ordinary training grow with the noise rate; those of self-adaptive training are much "
        "smaller at every rate and under every kind of noise.",
        paper=paper,
        laptop=laptop,
        drawing=OverColumns(description="error (%)", columns="noise rate", dashed="ERM"),
        rows="method, noise",
        notes=(
            "Generalisation error: accuracy on the noisy training set less that on the noisy validation set.",
            *notes,
        ),
    )


_SMALL_WITHOUT: Settings = {**HALF, **PERCEPTRON, "limit": 5_000}
_SMALL_SAT_WITHOUT: Settings = {"method": "sat-paper", "start_epoch": 12, "momentum": 0.49}

FIG3 = _recipe(
    "fig3",
    "Figure 3: errors over the noise rate",
    _experiment(RATES, {**CIFAR, "data": "cifar10"}, SAT),
    _experiment(SMALL_RATES, AUGMENTED, AUGMENTED_SAT, minutes=34 * AUGMENTED_MINUTES),
    "At laptop scale the whitened network learns 2,000 images of Fashion-MNIST at 14 pixels, few and small enough that "
    "it memorises them through crops and flips.",
)
FIG13 = _recipe(
    "fig13",
    "Figure 13: errors over the noise rate, without augmentation",
    _experiment(RATES, {**CIFAR, "data": "cifar10", "augment": "none"}, {**SAT, **WITHOUT}),
    _experiment(SMALL_RATES, _SMALL_WITHOUT, _SMALL_SAT_WITHOUT, minutes=25),
    "At laptop scale a perceptron with two hidden layers of 256 learns 5,000 images of Fashion-MNIST.",
)
