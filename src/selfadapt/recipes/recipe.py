"""A recipe: a table or figure of the paper as frozen data, at two scales, beside the published numbers.

An experiment is a list of trials and a list of entries. A trial is one training per seed, followed by evaluations. An
entry is a cell of the table: the path to its number in the results of a trial, and the number that the authors
published. An entry without a trial is one that the authors only cite: it is shown as published and never run.

Nothing here trains or depends on a method; the names of methods are values among the settings.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from selfadapt.core.errors import UserError

Settings = Mapping[str, Any]  # by option name, with underscores
TrialKind = Literal["labels", "pretraining", "linear-regression"]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """An evaluation of a trained run."""

    kind: Literal["coverage", "probe", "attack", "shift", "transfer"]
    settings: Settings = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Key of its results: the kind, name and epoch of an attack, task and initial weights of a transfer."""
        words = [str(self.settings[word]) for word in ("name", "at", "task") if word in self.settings]
        return "-".join([self.kind, *words, *(["scratch"] if self.settings.get("scratch") else [])])


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training per seed, followed by evaluations."""

    name: str  # also the name of its curve
    settings: Settings
    kind: TrialKind = "labels"
    evaluations: tuple[Evaluation, ...] = ()

    def folder(self, seed: int) -> str:
        """Name of its run folder with this seed."""
        return re.sub(r"[^a-z0-9.]+", "-", self.name.lower()).strip("-") + f"-{seed}"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A cell of the table.

    `value` is the path to its number: in the result of the run (result/…), in the metrics of its last epoch (last/…)
    or of the epoch that is best on given validation labels (early_stopping/…), in the highest value of each metric
    over the epochs (peak/…), or in the results of an evaluation (coverage/…). It may also be a difference of paths or
    numbers: "1 - result/…".
    """

    row: str
    column: str
    part: str = ""  # of a table that has several parts
    trial: str | None = None  # None: cited by the authors, not run
    value: str = "result/test_accuracy"
    published: float | None = None


Cell = tuple[Trial | None, Entry]  # `experiment` writes the name of the trial into the entry


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Number of turns in which trials are timed alternately, and steps per turn after the warm-up steps."""

    turns: int
    steps: int
    warm_up: int


@dataclass(frozen=True, kw_only=True)
class Experiment:
    trials: tuple[Trial, ...]
    entries: tuple[Entry, ...]
    timing: Timing | None = None  # if given, trials are timed side by side instead of trained to the end
    minutes: float | None = None  # per seed on two cores, estimated from images per second
    seeds: int = 1  # as many trials as the authors average over

    def __post_init__(self) -> None:
        folders = [trial.folder(0) for trial in self.trials]
        twice = {name for name in folders if folders.count(name) > 1}
        unknown = {entry.trial for entry in self.entries} - {trial.name for trial in self.trials} - {None}
        if twice or unknown:
            raise ValueError(f"duplicate trials: {sorted(twice)}; entries of unknown trials: {unknown}")

    def select_rows(self, rows: Collection[str]) -> "Experiment":
        """Keep these rows of the table and the trials they need; timed trials are all kept, to be compared."""
        known = list(dict.fromkeys(entry.row for entry in self.entries))
        for row in rows:
            if row not in known:
                raise UserError(f"--row {row!r} is not in this table; its rows are: {'; '.join(known)}")
        entries = tuple(entry for entry in self.entries if entry.row in rows)
        names = {entry.trial for entry in entries}
        trials = tuple(trial for trial in self.trials if trial.name in names or self.timing is not None)
        return replace(self, trials=trials, entries=entries)

    def with_precision(self, precision: str | None) -> "Experiment":
        """Train every network in this precision, by default in that of the recipe, which is float32 if it has none."""
        if precision and all(trial.kind == "linear-regression" for trial in self.trials):
            raise UserError(f"--precision {precision}: this recipe trains no network; omit the option")
        own = {"precision": precision} if precision else {}
        trials = (
            trial
            if trial.kind == "linear-regression"
            else replace(trial, settings={"precision": "float32", **trial.settings, **own})
            for trial in self.trials
        )
        return replace(self, trials=tuple(trials))


def experiment(
    cells: Iterable[Cell], *, minutes: float | None = None, timing: Timing | None = None, seeds: int = 1
) -> Experiment:
    """The experiment with these cells. A trial that fills several cells is trained once."""
    trials: dict[str, Trial] = {}
    entries = []
    for trial, entry in cells:
        if trial is not None:
            trials.setdefault(trial.name, trial)
            entry = replace(entry, trial=trial.name)
        entries.append(entry)
    return Experiment(
        trials=tuple(trials.values()), entries=tuple(entries), timing=timing, minutes=minutes, seeds=seeds
    )


def cited(published: Mapping[str, Iterable[float | None]], columns: Iterable[str], *, part: str = "") -> list[Cell]:
    """Rows that the authors cite: shown as published, not run."""
    names = tuple(columns)
    return [
        (None, Entry(row=row, column=column, part=part, published=number))
        for row, numbers in published.items()
        for column, number in zip(names, numbers, strict=True)
        if number is not None
    ]


@dataclass(frozen=True, kw_only=True)
class Panels:
    """One panel per trial with curves over the epochs: the four of Figure 1, or one for corrupted and clean samples."""

    curves: Literal["four", "portions"]
    columns: int = 2


@dataclass(frozen=True, kw_only=True)
class OverEpochs:
    """One line per trial over the epochs, or over the minutes they took."""

    key: str  # in metrics.jsonl
    description: str
    less_than_one: bool = False  # draw 1 - value: an error instead of an accuracy
    log: bool = False
    minutes: bool = False


@dataclass(frozen=True, kw_only=True)
class OverColumns:
    """One panel per part of the table, one line per row over its numeric columns.

    A row whose name starts with `dashed` is drawn dashed, in the colour of the row that is otherwise named the same.
    """

    description: str
    columns: str
    dashed: str = ""


@dataclass(frozen=True, kw_only=True)
class RunFigure:
    """A figure of the first run's report."""

    name: str


@dataclass(frozen=True, kw_only=True)
class Stacked:
    """One bar per row of a part of the table, with these columns stacked."""

    part: str
    columns: tuple[str, ...]


Drawing = Panels | OverEpochs | OverColumns | RunFigure | Stacked


@dataclass(frozen=True, kw_only=True)
class Recipe:
    name: str  # such as fig1 or table2
    title: str
    effect: str  # what the paper shows with it
    paper: Experiment
    laptop: Experiment
    drawing: Drawing | None = None
    unit: Literal["%", ""] = "%"
    rows: str = "method"  # what the rows of the table are
    notes: tuple[str, ...] = ()  # interpretations, and deviations from the paper

    @property
    def scaled_down(self) -> bool:
        """Whether the laptop experiment differs from that of the paper."""
        return self.laptop != self.paper

    def at(self, scale: str) -> Experiment:
        if scale not in ("paper", "laptop"):
            raise UserError(f"--scale {scale!r} is not known; choose paper or laptop")
        return self.paper if scale == "paper" else self.laptop
