"""What a recipe is: a table or figure of the paper as frozen data, at two scales, beside the published numbers.

An experiment is a list of trials and a list of entries. A trial is a training, once for each seed, and what is asked of
it afterwards. An entry is a cell of the table: where its number is found in what a trial came to, and what the authors
published. A cell that the authors only cite has no trial; it is shown as published, and never run.

Nothing here trains or knows a method; names of methods are words among the settings.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from selfadapt.core.errors import UserError

Settings = Mapping[str, Any]  # by the names that users know
Scale = Literal["paper", "laptop"]
TrialKind = Literal["labels", "pretraining", "linear-regression"]


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A question to a trained run."""

    what: Literal["coverage", "probe", "attack", "shift", "transfer"]
    settings: Settings = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Where values find the answer: the question, the moment of an attack, the task and beginning of a transfer."""
        words = [str(self.settings[word]) for word in ("name", "at", "task") if word in self.settings]
        return "-".join([self.what, *words, *(["scratch"] if self.settings.get("scratch") else [])])


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A training, once for each seed, and what is asked of it afterwards."""

    name: str  # of its curve, too
    settings: Settings
    kind: TrialKind = "labels"
    asks: tuple[Ask, ...] = ()

    def folder(self, seed: int) -> str:
        """The name of its folder with this seed."""
        return re.sub(r"[^a-z0-9.]+", "-", self.name.lower()).strip("-") + f"-{seed}"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A cell of the table.

    `value` leads to its number: a path through the result of the run (result/…), the metrics of its last epoch (last/…)
    or the answer to a question (coverage/…), or two of these or numbers with a minus between them.
    """

    row: str
    column: str
    part: str = ""  # of the table, where it has several
    trial: str | None = None  # None: the authors cite it, and it is not run
    value: str = "result/test_accuracy"
    published: float | None = None


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How often trials take turns at being timed, and the steps of a trial in a turn, after those that do not count."""

    turns: int
    steps: int
    warm_up: int


@dataclass(frozen=True, kw_only=True)
class Experiment:
    trials: tuple[Trial, ...]
    entries: tuple[Entry, ...]
    timing: Timing | None = None  # given: trials are not trained to their end, but timed side by side
    minutes: float | None = None  # of one seed on two cores, estimated from images a second

    def __post_init__(self) -> None:
        folders = [trial.folder(0) for trial in self.trials]
        twice = {name for name in folders if folders.count(name) > 1}
        names = {trial.name for trial in self.trials}
        unknown = {entry.trial for entry in self.entries if entry.trial is not None} - names
        if twice or unknown:
            raise ValueError(f"trials given twice: {sorted(twice)}; entries of trials that are not there: {unknown}")

    def of_rows(self, rows: Collection[str]) -> "Experiment":
        """Only these rows of the table, and the trials that they need: all where they are timed side by side."""
        there = list(dict.fromkeys(entry.row for entry in self.entries))
        for row in rows:
            if row not in there:
                raise UserError(f"--row {row!r} is not in this table; its rows are: {'; '.join(there)}")
        entries = tuple(entry for entry in self.entries if entry.row in rows)
        names = {entry.trial for entry in entries}
        trials = tuple(trial for trial in self.trials if trial.name in names or self.timing is not None)
        return replace(self, trials=trials, entries=entries)

    def in_precision(self, precision: str) -> "Experiment":
        """Every network trained in this precision."""
        if all(trial.kind == "linear-regression" for trial in self.trials):
            raise UserError(f"--precision {precision}: no network is trained here; leave it out")
        trials = (
            trial
            if trial.kind == "linear-regression"
            else replace(trial, settings={**trial.settings, "precision": precision})
            for trial in self.trials
        )
        return replace(self, trials=tuple(trials))


@dataclass(frozen=True, kw_only=True)
class Panels:
    """A panel for each trial with curves over the epochs: Figure 1's four, or by whether noise changed a sample."""

    curves: Literal["four", "portions"]
    columns: int = 2


@dataclass(frozen=True, kw_only=True)
class OverEpochs:
    """A line for each trial over the epochs, or over the minutes that they took."""

    key: str  # in metrics.jsonl
    description: str
    less_than_one: bool = False  # draw 1 - the value: an error for an accuracy
    log: bool = False
    minutes: bool = False


@dataclass(frozen=True, kw_only=True)
class OverColumns:
    """A panel for each part of the table, a line for each row over its columns, which are numbers.

    Rows that begin with the word `dashed` are, in the colour of the row that else has the same name.
    """

    description: str
    columns: str
    dashed: str = ""


@dataclass(frozen=True, kw_only=True)
class OfRun:
    """A figure that the page of the first run has already."""

    name: str


@dataclass(frozen=True, kw_only=True)
class Stacked:
    """A bar for each row of a part of the table, in which these columns stand end to end."""

    part: str
    columns: tuple[str, ...]


Drawing = Panels | OverEpochs | OverColumns | OfRun | Stacked


@dataclass(frozen=True, kw_only=True)
class Recipe:
    name: str  # fig1, table2
    title: str
    effect: str  # what the paper shows with it
    paper: Experiment
    laptop: Experiment
    drawing: Drawing | None = None
    unit: Literal["%", ""] = "%"
    rows: str = "method"  # what a row of the table is
    notes: tuple[str, ...] = ()  # readings, and where a scale differs from the paper

    @property
    def scaled_down(self) -> bool:
        """Whether the laptop's experiment is another one than the paper's."""
        return self.laptop != self.paper

    def at(self, scale: str) -> Experiment:
        if scale not in ("paper", "laptop"):
            raise UserError(f"--scale {scale!r} is not known; choose paper or laptop")
        return self.paper if scale == "paper" else self.laptop


def cited(
    published: Mapping[str, Iterable[float | None]], columns: Iterable[str], *, part: str = ""
) -> tuple[Entry, ...]:
    """Rows that the authors cite from others: shown as published, not run."""
    names = tuple(columns)
    return tuple(
        Entry(row=row, column=column, part=part, published=number)
        for row, numbers in published.items()
        for column, number in zip(names, numbers, strict=True)
        if number is not None
    )
