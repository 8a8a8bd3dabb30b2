"""What the recipes without labels share: a trial by a method and its settings, evaluated by a linear classifier."""

from selfadapt.recipes.recipe import Ask, Entry, Experiment, Settings, Trial
from selfadapt.recipes.scales import PRETRAINING, SMALL_PRETRAINING, SMALL_VIEW_MINUTES

LINEAR = "probe/test_accuracy"
PROBE, SMALL_PROBE = Ask(what="probe"), Ask(what="probe", settings={"limit": 4_000})
SAT: Settings = {"method": "sat", "views": 1, "momentum": "0.7", "beta": "0.99"}
BYOL: Settings = {"method": "byol", "views": 2, "beta": "0.99"}
MOCO: Settings = {"method": "moco", "views": 2, "beta": "0.99"}


def paper(name: str, settings: Settings) -> Trial:
    return Trial(name=name, kind="pretraining", settings={**PRETRAINING, **settings}, asks=(PROBE,))


def laptop(name: str, settings: Settings) -> Trial:
    return Trial(name=name, kind="pretraining", settings={**SMALL_PRETRAINING, **settings}, asks=(SMALL_PROBE,))


def linear(part: str, row: str, column: str, trial: Trial, published: float | None) -> Entry:
    return Entry(part=part, row=row, column=column, trial=trial.name, value=LINEAR, published=published)


def small(trials: dict[str, Trial], entries: list[Entry]) -> Experiment:
    """A laptop's experiment with the time that its views take."""
    views = sum(int(trial.settings.get("views", 1)) for trial in trials.values())
    return Experiment(trials=tuple(trials.values()), entries=tuple(entries), minutes=views * SMALL_VIEW_MINUTES)
