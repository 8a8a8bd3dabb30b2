"""What a review has measured so far: the precision of the undecided suggestions, and the labels of whole splits.

The evidence is the reviewed beginning of the random order, up to the first gap. It does not matter in which queue a
sample was decided, because the bounds hold for any stopping rule; but samples that were decided together with others
were not reviewed individually, and do not count.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from selfadapt.evaluation.label_errors.list_quality import Interval
from selfadapt.evaluation.label_errors.report import LabelErrorReport
from selfadapt.review.journal import Decision
from selfadapt.review.statistics.draws import Draw
from selfadapt.review.statistics.precision_bound import (
    Seen,
    deepest,
    least_right,
    most_right,
    rest_at_least,
    rest_at_most,
)

_MOST_CHECKS = 100_000  # largest number of further checks to consider


@dataclass(frozen=True, kw_only=True)
class Depth:
    """The drawn suggestions down to one depth, most likely wrong labels first."""

    size: int
    rest: int  # undecided
    seen: int  # reviewed in random order
    right: int  # right suggestions among the reviewed
    low: float  # bounds on the precision of the rest
    high: float


@dataclass(frozen=True, kw_only=True)
class SuggestionPrecision:
    """The precision of the drawn suggestions. All bounds hold together, at all times, with the confidence."""

    confidence: float
    population: int
    seen: int
    right: int
    depths: Sequence[Depth]

    def deepest(self, precision: float) -> Depth | None:
        """The deepest depth whose rest reaches this precision; None if there is none, or nothing is left there."""
        if not self.depths:
            return None
        place = int(deepest(np.array([depth.low for depth in self.depths]), precision))
        return self.depths[place] if place >= 0 and self.depths[place].rest else None


def reviewed_in_order(draw: Draw, decisions: Mapping[str, Decision]) -> int:
    """The number of samples at the start of the random order that were decided individually, up to the first gap."""
    for position, sample_id in enumerate(draw.in_order):
        decision = decisions.get(sample_id)
        if decision is None or not decision.individual:
            return position
    return len(draw.in_order)


def measure_suggestions(draw: Draw, decisions: Mapping[str, Decision], confidence: float) -> SuggestionPrecision:
    """The precision of the undecided suggestions at each depth, from the decisions."""
    count = reviewed_in_order(draw, decisions)
    seen = _seen(draw, decisions, count)
    low_J, high_J = (
        (rest_at_least(seen, confidence), rest_at_most(seen, confidence)) if draw.ids else 2 * (np.zeros(0),)
    )
    columns = (seen.size_J, seen.rest_J, seen.seen_J, seen.right_J, low_J, high_J)
    depths = [
        Depth(size=size, rest=rest, seen=own, right=right, low=low, high=high)
        for size, rest, own, right, low, high in zip(*(column.tolist() for column in columns), strict=True)
    ]
    right = int(seen.right_J[-1]) if depths else 0
    return SuggestionPrecision(confidence=confidence, population=len(draw.ids), seen=count, right=right, depths=depths)


def _seen(draw: Draw, decisions: Mapping[str, Decision], count: int) -> Seen:
    own = [decisions.get(sample_id) for sample_id in draw.ids]
    decided_N = np.array([decision is not None for decision in own], bool)
    fits = zip(own, draw.suggested, strict=True)
    right_N = np.array([decision is not None and decision.label == suggested for decision, suggested in fits], bool)
    individual_N = np.array([decision is not None and decision.individual for decision in own], bool)
    seen_N = np.zeros(len(draw.ids), bool)
    seen_N[draw.order_N[:count]] = True

    def within(flags_N: Any) -> Any:
        return np.concatenate([[0], np.cumsum(flags_N)])[draw.depth_J]

    return Seen(
        size_J=draw.depth_J,
        seen_J=within(seen_N),
        right_J=within(seen_N & right_N),
        decided_J=within(decided_N),
        decided_right_least_J=within(individual_N & right_N),
        decided_right_most_J=within(right_N | (decided_N & ~individual_N)),
    )


def further_checks(found: SuggestionPrecision, precision: float) -> int | None:
    """About how many more checks until some depth reaches this precision, if the rest is like the reviewed ones.

    None if no number of checks would do.
    """
    if not found.depths or found.deepest(precision) is not None:
        return 0 if found.depths else None
    size_J, rest_J, seen_J, right_J = np.array([(own.size, own.rest, own.seen, own.right) for own in found.depths]).T
    decided_J = size_J - rest_J
    rate_J = np.where(seen_J > 0, right_J / np.maximum(seen_J, 1), 1.0)
    left = found.population - found.seen
    more = np.unique(np.geomspace(1, max(1, min(left, _MOST_CHECKS)), 60).astype(int))[:, None]
    added = np.minimum(np.round(more * (size_J - seen_J) / max(left, 1)), size_J - seen_J).astype(int)
    added_right = np.floor(added * rate_J).astype(int)
    decided = np.minimum(decided_J + added, size_J)
    known_right = np.minimum(right_J + added_right, decided)
    later = Seen(
        size_J=np.broadcast_to(size_J, added.shape),
        seen_J=seen_J + added,
        right_J=right_J + added_right,
        decided_J=decided,
        decided_right_least_J=known_right,
        decided_right_most_J=known_right,
    )
    low = rest_at_least(later, found.confidence)
    enough = np.flatnonzero(((low >= precision) & (later.rest_J > 0)).any(axis=1))
    return int(more[enough[0], 0]) if len(enough) else None


@dataclass(frozen=True, kw_only=True)
class SplitReview:
    """The decisions about the labels of a split, and the estimates that follow from its random sample."""

    part: str  # name of the split
    labels: int
    decided: int
    changed: int
    removed: int
    sampled: int  # reviewed in random order
    wrong: Interval | None  # share of wrong labels; removed ones count as wrong
    accuracy_given: float | None
    accuracy_reviewed: float | None  # by the labels as decided, without the removed ones
    accuracy_true: Interval | None  # unbiased; the bounds hold for any true class of the removed ones


def review_split(
    report: LabelErrorReport, split: str, decisions: Mapping[str, Decision], draw: Draw | None, confidence: float
) -> SplitReview:
    """The labels of a split as given, as decided, and as estimated from its random sample."""
    code: dict[str | None, int] = {name: k for k, name in enumerate(report.class_names)}
    rows = report.rows_of(split)
    given_n, predicted_n = report.given_codes[rows], report.predicted_codes[rows]
    own = [decisions.get(report.ids[row]) for row in rows.tolist()]
    decided_n = np.array([decision is not None for decision in own], bool)
    now_n = np.array(
        [
            given if decision is None else code.get(decision.label, -1)
            for given, decision in zip(given_n, own, strict=True)
        ]
    )
    removed_n = decided_n & (now_n < 0)
    known_n = predicted_n >= 0
    scored_n = known_n & ~removed_n
    count, wrong, true = 0, None, None
    if draw is not None and (count := reviewed_in_order(draw, decisions)):
        position = {sample_id: i for i, sample_id in enumerate(report.ids[rows].tolist())}
        sample = np.array([position[sample_id] for sample_id in draw.in_order[:count] if sample_id in position], int)
        errors = int((now_n[sample] != given_n[sample]).sum())
        wrong = _interval(len(draw.ids), count, errors, errors, confidence)
        hits, removed = int((scored_n & (now_n == predicted_n))[sample].sum()), int(removed_n[sample].sum())
        if known_n[sample].all() and count > removed:
            true = _interval(len(draw.ids), count, hits, hits + removed, confidence, hits / (count - removed))
    return SplitReview(
        part=split,
        labels=len(rows),
        decided=int(decided_n.sum()),
        changed=int((decided_n & ~removed_n & (now_n != given_n)).sum()),
        removed=int(removed_n.sum()),
        sampled=count,
        wrong=wrong,
        accuracy_given=float((predicted_n == given_n)[known_n].mean()) if known_n.any() else None,
        accuracy_reviewed=float((predicted_n == now_n)[scored_n].mean()) if scored_n.any() else None,
        accuracy_true=true,
    )


def _interval(size: int, count: int, least: int, most: int, confidence: float, value: float | None = None) -> Interval:
    """A share of `size` samples, from `count` random ones of which between `least` and `most` have the property."""
    low = least_right(size, count, least, 1 - confidence)
    high = most_right(size, count, most, 1 - confidence)
    return Interval(least / count if value is None else value, float(low) / size, float(high) / size)
