"""What the recipes without labels share: a trial by a method and its settings, evaluated by a linear classifier.

At paper scale that is the usual protocol, random resized crops and flips in each epoch, and a second part of the table
has a classifier on features that were taken once. At laptop scale it is the latter alone.
"""

from collections.abc import Iterable
from dataclasses import replace

from selfadapt.recipes.recipe import Ask, Entry, Experiment, Settings, Trial
from selfadapt.recipes.scales import (
    LONG_PRETRAINING,
    LONG_VIEW_MINUTES,
    PRETRAINING,
    SHORT_PRETRAINING,
    SHORT_VIEW_MINUTES,
)

LINEAR, AUGMENTED, UNTRAINED = "probe/test_accuracy", "probe/augmented_accuracy", "probe/random_network_accuracy"
ONCE = "features taken once"
PROBE = Ask(what="probe", settings={"augment": "resized-crop"})
PROTOCOL = (
    "The linear classifier learns from random resized crops and flips, on features as they are; the paper leaves its "
    f"augmentation to common practice, and that is it. A second part of the table ({ONCE}) has one that learned "
    "without augmentation, on features brought to deviation 1; the laptop's scale has that alone."
)
RATE = "The paper gives no learning rate for small images: 0.1 here, 0.3 at laptop scale."
SHORT_NOTE = (
    "At laptop scale the small ResNet learns 8,000 images of CIFAR10 for 20 epochs, at 24 pixels in the first 80 % of "
    "them; the classifier has the labels of the same images. Below is what an untrained network gives."
)
LONG_NOTE = (
    "At laptop scale the small ResNet learns 20,000 images of CIFAR10 for 60 epochs, at 24 pixels in the first 80 % of "
    "them: less than a hundredth of the paper's computation."
)
SAT: Settings = {"method": "sat", "views": 1, "momentum": "0.7", "beta": "0.99"}
BYOL: Settings = {"method": "byol", "views": 2, "beta": "0.99"}
MOCO: Settings = {"method": "moco", "views": 2, "beta": "0.99"}


def paper(name: str, settings: Settings) -> Trial:
    return Trial(name=name, kind="pretraining", settings={**PRETRAINING, **settings}, asks=(PROBE,))


def laptop(name: str, settings: Settings, shared: Settings = SHORT_PRETRAINING) -> Trial:
    """The classifier learns from as many labelled images as the network had."""
    probe = Ask(what="probe", settings={"limit": shared["limit"]})
    return Trial(name=name, kind="pretraining", settings={**shared, **settings}, asks=(probe,))


def linear(part: str, row: str, column: str, trial: Trial, published: float | None) -> Entry:
    return Entry(part=part, row=row, column=column, trial=trial.name, value=LINEAR, published=published)


def whole(trials: Iterable[Trial], entries: Iterable[Entry]) -> Experiment:
    """The paper's experiment: by the usual protocol, beside the published numbers, and by features taken once."""
    usual, once = [], []
    for entry in entries:
        if entry.trial is None:
            usual.append(entry)
            continue
        usual.append(replace(entry, value=AUGMENTED))
        once.append(replace(entry, part=", ".join(word for word in (entry.part, ONCE) if word), published=None))
    return Experiment(trials=tuple(trials), entries=(*usual, *once))


def short(trials: dict[str, Trial], entries: list[Entry]) -> Experiment:
    """A laptop's experiment, and in a part of its own the untrained network."""
    beside = _untrained(trials, "for comparison")
    return _timed(trials, [*entries, beside], SHORT_VIEW_MINUTES)


def compared(rows: dict[str, tuple[Settings, float]]) -> Experiment:
    """Methods beside each other on CIFAR10 with their published numbers, and the untrained network."""
    trials = {row: laptop(row, settings, LONG_PRETRAINING) for row, (settings, _) in rows.items()}
    entries = [linear("", row, "CIFAR10", trials[row], published) for row, (_, published) in rows.items()]
    return _timed(trials, [*entries, _untrained(trials)], LONG_VIEW_MINUTES)


def _untrained(trials: dict[str, Trial], part: str = "") -> Entry:
    """The network that the first of these began with."""
    return Entry(part=part, row="untrained", column="CIFAR10", trial=next(iter(trials)), value=UNTRAINED)


def _timed(trials: dict[str, Trial], entries: list[Entry], view_minutes: float) -> Experiment:
    views = sum(int(trial.settings.get("views", 1)) for trial in trials.values())
    return Experiment(trials=tuple(trials.values()), entries=tuple(entries), minutes=views * view_minutes)
