"""The figures of the labels of a run that `selfadapt audit`, report.html and the review page share: a table and a text.

Before any decision, the figures are expectations from P(wrong) (evaluation/label_errors/list_quality.py). From 50
decisions on, random checks give intervals that hold at all times (strata.py). For a method without calibrated P(wrong)
the likely errors are counted, and their precision is left to a review.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from selfadapt.evaluation.label_errors.report import LabelErrorReport
from selfadapt.review.decisions import WORDS, read_decisions
from selfadapt.review.journal import Decision
from selfadapt.review.statistics.draws import SUGGESTIONS, Draw, read_draw
from selfadapt.review.statistics.measurement import measure_suggestions, review_split
from selfadapt.review.statistics.strata import Stratum, bounds, further_random_checks, strata_of
from selfadapt.run_folder.folder import RunFolder
from selfadapt.run_folder.labels_file import SPLITS, read_report

ENOUGH = 50  # decisions from which intervals are shown
CONFIDENCE = 0.95
WIDTH = 0.05  # half-width of the interval at which the error rate counts as known
COLUMNS = ("split", "labels", "likely errors", "estimated wrong", "precision", "recall", "decided")


@dataclass(frozen=True)
class Share:
    """An expected share, with an interval once it is measured."""

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return _percent(self.value)
        return f"{_percent(self.low)} to {_percent(self.high)}"


@dataclass(frozen=True, kw_only=True)
class SplitFigures:
    """The figures of one split, or of all."""

    split: str
    labels: int
    likely_errors: int
    error_rate: Share
    precision: Share | None  # of the likely errors, the share that is wrong
    recall: Share | None  # of the wrong labels, the share that is a likely error
    decided: int  # individual decisions
    further_checks: int  # random checks until the error rate of each split is known to within WIDTH

    @property
    def wrong(self) -> int:
        return round(self.error_rate.value * self.labels)

    def to_json(self) -> dict[str, Any]:
        shares = {name: getattr(self, name) for name in ("error_rate", "precision", "recall")}
        return {
            "wrong": self.wrong,
            **{name: None if share is None else asdict(share) for name, share in shares.items()},
            "decided": self.decided,
            "further_looks": self.further_checks,
        }

    def cells(self) -> tuple[str, ...]:
        uncalibrated = self.likely_errors and self.precision is None and not _is_measured(self.error_rate)
        rate = "–" if uncalibrated else f"{self.wrong:,} ({self.error_rate})"
        shares = ("–" if share is None else str(share) for share in (self.precision, self.recall))
        return (self.split, f"{self.labels:,}", f"{self.likely_errors:,}", rate, *shares, f"{self.decided:,}")


@dataclass(frozen=True, kw_only=True)
class LabelFigures:
    splits: Sequence[SplitFigures]
    total: SplitFigures

    @property
    def rows(self) -> list[SplitFigures]:
        """The splits, and their total if there are several."""
        return [*self.splits, self.total] if len(self.splits) > 1 else list(self.splits)

    @property
    def sentences(self) -> list[str]:
        """What was found, what was measured, and how many random checks are missing."""
        measured = [own for own in self.splits if _is_measured(own.error_rate) or _is_measured(own.precision)]
        return [self._found(), *(_measured(own) for own in measured), *self._missing()]

    def _found(self) -> str:
        own, errors = self.total, [own for own in self.splits if own.likely_errors]
        by_split = ", ".join(f"{split.likely_errors:,} {split.split}" for split in errors)
        counts = f"{own.likely_errors:,} are listed as likely errors ({by_split})" if errors else ""
        estimate = f"An estimated {own.wrong:,} of {own.labels:,} labels are wrong"
        if not errors:
            return f"{estimate}; none is listed as a likely error."
        if own.precision is None:
            return f"Of {own.labels:,} labels, {counts}. This method does not estimate how many are wrong."
        return f"{estimate}; {counts}, of which about {_percent(own.precision.value)} are wrong."

    def _missing(self) -> list[str]:
        own = self.splits[0]
        if own.further_checks == 0:
            return []
        more = " more" if own.decided else ""
        return [
            f"To estimate the error rate of the {own.split} labels to within {_points()}, check about "
            f"{own.further_checks:,}{more} of them at random (selfadapt review, Measure)."
        ]

    def to_json(self) -> dict[str, Any]:
        return {"sentences": self.sentences, "columns": COLUMNS, "rows": [own.cells() for own in self.rows]}


def label_figures(folder: RunFolder) -> LabelFigures:
    """The figures of an audited run."""
    return figures_of(read_report(folder), read_decisions(folder), read_draws(folder))


def read_draws(folder: RunFolder) -> dict[str, Draw]:
    """All random samples that were drawn, by name."""
    found = {name: read_draw(folder, name) for name in (*SPLITS, SUGGESTIONS)}
    return {name: own for name, own in found.items() if own is not None}


def figures_of(report: LabelErrorReport, decisions: Mapping[str, Decision], draws: Mapping[str, Draw]) -> LabelFigures:
    names = [name for name in report.split_names if len(report.rows_of(name))]
    strata = {name: strata_of(report, name, decisions, draws) for name in names}
    errors, others = ([pair[place] for pair in strata.values()] for place in (0, 1))
    checks = {
        name: further_random_checks([own for own in pair if own.size], CONFIDENCE, WIDTH)
        for name, pair in strata.items()
    }
    calibrated = report.is_calibrated
    return LabelFigures(
        splits=[_figures(name, pair[:1], pair[1:], calibrated, checks[name]) for name, pair in strata.items()],
        total=_figures("all", errors, others, calibrated, sum(checks.values())),
    )


def _figures(
    split: str, errors: Sequence[Stratum], others: Sequence[Stratum], calibrated: bool, further_checks: int
) -> SplitFigures:
    """The figures of one stratum of likely errors and one of other labels, or of several of each."""
    both = [own for own in (*errors, *others) if own.size]
    labels, likely_errors = (sum(own.size for own in some) for some in (both, errors))
    decided = sum(own.known_wrong + own.known_right for own in both)
    enough = decided >= ENOUGH
    wrong_errors = sum(_wrong(own, 1.0, calibrated) for own in errors)
    wrong = wrong_errors + sum(_wrong(own, 0.0, calibrated) for own in others)
    listed = [own for own in errors if own.size]
    rate = _share(wrong, labels, both, enough) if both else Share(0.0)
    precision = _share(wrong_errors, likely_errors, listed, enough) if listed else None
    if precision is not None and not calibrated and precision.low is None:
        precision = None
    return SplitFigures(
        split=split,
        labels=labels,
        likely_errors=likely_errors,
        error_rate=rate,
        precision=precision,
        recall=_recall(wrong_errors, wrong, listed, [own for own in others if own.size], rate) if precision else None,
        decided=decided,
        further_checks=further_checks,
    )


def _wrong(own: Stratum, by_list: float, calibrated: bool) -> float:
    """The expected number of wrong labels; without calibrated P(wrong) and checks, the list itself is counted."""
    if not calibrated and not own.is_measured:
        return own.known_wrong + by_list * own.rest
    return own.known_wrong + own.rate * own.rest


def _share(wrong: float, size: int, strata: Sequence[Stratum], enough: bool) -> Share:
    value = wrong / size
    if not enough or not all(own.is_measured for own in strata):
        return Share(value)
    low, high = (count / size for count in bounds(strata, CONFIDENCE))
    return Share(min(max(value, low), high), low, high)


def _recall(
    found: float, wrong: float, errors: Sequence[Stratum], others: Sequence[Stratum], rate: Share
) -> Share | None:
    if wrong <= 0:
        return None
    if rate.low is None:
        return Share(found / wrong)
    budget = (1 - CONFIDENCE) / (len(errors) + len(others))
    least, most = (sum(own.bounds(budget)[end] for own in errors) for end in (0, 1))
    fewest, greatest = (sum(own.bounds(budget)[end] for own in others) for end in (0, 1))
    low = least / (least + greatest) if least else 0.0
    high = most / (most + fewest) if most else 1.0
    return Share(min(max(found / wrong, low), high), low, high)


def _is_measured(share: Share | None) -> bool:
    return share is not None and share.low is not None


def _measured(own: SplitFigures) -> str:
    if not _is_measured(own.error_rate):
        found = f"{own.precision} of the {own.likely_errors:,} likely errors in the {own.split} split are wrong"
    else:
        found = f"{own.error_rate} of the {own.labels:,} {own.split} labels are wrong"
        if _is_measured(own.precision):
            found += f", and {own.precision} of the {own.likely_errors:,} likely errors among them"
    enough = "" if own.further_checks else f"; the error rate is known to within {_points()}"
    return f"Based on {own.decided:,} decisions, {found}, with a confidence of {100 * CONFIDENCE:.0f} %{enough}."


def _points() -> str:
    return f"{100 * WIDTH:.0f} percentage points"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def review_summary(folder: RunFolder) -> dict[str, Any] | None:
    """What was decided and measured; None without any decision."""
    decisions = read_decisions(folder)
    if not decisions or not folder.labels_file.exists():
        return None
    report = read_report(folder)
    known = {sample_id: decision for sample_id, decision in decisions.items() if sample_id in report.position}
    splits = [
        review_split(report, split, known, read_draw(folder, split), CONFIDENCE)
        for split in report.split_names
        if len(report.rows_of(split))
    ]
    draw = read_draw(folder, SUGGESTIONS)
    counts = Counter(WORDS.get(decision.what, decision.what) for decision in known.values())
    return {
        "decided": len(known),
        "counts": dict(counts.most_common()),
        "who": sorted({decision.who for decision in known.values() if decision.who}),
        "parts": splits,
        "suggestions": None if draw is None else measure_suggestions(draw, known, CONFIDENCE),
        "confidence": CONFIDENCE,
    }
