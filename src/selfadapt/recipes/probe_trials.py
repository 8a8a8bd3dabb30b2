"""Shared by the recipes without labels: a trial from a method and its settings, evaluated by a linear classifier.

At paper scale that is the usual protocol, with random resized crops and flips in each epoch, and a second part of the
table has a classifier on frozen features without augmentation. At laptop scale there is only the latter.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from selfadapt.recipes.recipe import Cell, Entry, Evaluation, Experiment, Settings, Trial, experiment
from selfadapt.recipes.scales import (
    LONG_PRETRAINING,
    LONG_VIEW_MINUTES,
    PRETRAINING,
    SHORT_PRETRAINING,
    SHORT_VIEW_MINUTES,
)

LINEAR, AUGMENTED, UNTRAINED = "probe/test_accuracy", "probe/augmented_accuracy", "probe/random_network_accuracy"
FROZEN = "frozen features"
PROBE = Evaluation(kind="probe", settings={"augment": "resized-crop"})
PROTOCOL = (
    "The linear classifier is trained on raw features of random resized crops and flips; the paper does not state its "
    f"augmentation, and this is common practice. A second part of the table ({FROZEN}) has a classifier without "
    "augmentation, on features scaled to unit standard deviation; at laptop scale there is only that one."
)
RATE = "The paper gives no learning rate for small images: 0.1 here, 0.3 at laptop scale."
SHORT_NOTE = (
    "At laptop scale the small ResNet is trained on 8,000 images of CIFAR10 for 20 epochs, at 24 pixels in the first "
    "80 % of them; the classifier uses the labels of the same images. An untrained network is shown for comparison."
)
LONG_NOTE = (
    "At laptop scale the small ResNet is trained on 20,000 images of CIFAR10 for 60 epochs, at 24 pixels in the first "
    "80 % of them: less than a hundredth of the paper's computation."
)
SHORT_NOTES, LONG_NOTES = (PROTOCOL, RATE, SHORT_NOTE), (PROTOCOL, RATE, LONG_NOTE)
SAT: Settings = {"method": "sat", "views": 1, "momentum": "0.7", "beta": "0.99"}
BYOL: Settings = {"method": "byol", "views": 2, "beta": "0.99"}
MOCO: Settings = {"method": "moco", "views": 2, "beta": "0.99"}
MakeTrial = Callable[[str, Settings], Trial]  # `paper` or `laptop`


def paper(name: str, settings: Settings) -> Trial:
    return Trial(name=name, kind="pretraining", settings={**PRETRAINING, **settings}, evaluations=(PROBE,))


def laptop(name: str, settings: Settings, shared: Settings = SHORT_PRETRAINING) -> Trial:
    """The classifier is trained on as many labelled images as the network."""
    probe = Evaluation(kind="probe", settings={"limit": shared["limit"]})
    return Trial(name=name, kind="pretraining", settings={**shared, **settings}, evaluations=(probe,))


def linear(trial: Trial, row: str, column: str, published: float | None, part: str = "") -> Cell:
    return trial, Entry(part=part, row=row, column=column, value=LINEAR, published=published)


def probed(cells: Iterable[Cell]) -> Experiment:
    """The paper's experiment: with augmentation beside the published numbers, and on frozen features."""
    augmented: list[Cell] = []
    frozen: list[Cell] = []
    for trial, entry in cells:
        if trial is None:
            augmented.append((trial, entry))
            continue
        augmented.append((trial, replace(entry, value=AUGMENTED)))
        part = ", ".join(word for word in (entry.part, FROZEN) if word)
        frozen.append((trial, replace(entry, part=part, published=None)))
    return experiment([*augmented, *frozen])


def short(cells: Iterable[Cell]) -> Experiment:
    """A laptop experiment with the untrained network in a separate part."""
    return _with_untrained(list(cells), SHORT_VIEW_MINUTES, "for comparison")


def compared(rows: dict[str, tuple[Settings, float]]) -> Experiment:
    """Methods side by side on CIFAR10 with their published numbers, and the untrained network."""
    cells = [
        linear(laptop(row, settings, LONG_PRETRAINING), row, "CIFAR10", published)
        for row, (settings, published) in rows.items()
    ]
    return _with_untrained(cells, LONG_VIEW_MINUTES)


def _with_untrained(cells: list[Cell], view_minutes: float, part: str = "") -> Experiment:
    """Add the initial network of the first trial."""
    untrained = (cells[0][0], Entry(part=part, row="untrained", column="CIFAR10", value=UNTRAINED))
    whole = experiment([*cells, untrained])
    views = sum(int(trial.settings.get("views", 1)) for trial in whole.trials)
    return replace(whole, minutes=views * view_minutes)
