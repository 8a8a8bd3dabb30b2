"""What a review has measured so far: the precision of the rest of the suggestions, and the labels of whole parts.

Evidence is the random order as far as it was looked at without a gap. It does not matter in which queue a sample was
decided, as the bounds hold wherever one stops; but what was decided with many others at once was not looked at.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

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
from selfadapt.run_folder.labels_file import Verdicts

_FURTHER = 100_000  # looks beyond which it is not told how many more it takes


@dataclass(frozen=True, kw_only=True)
class Depth:
    """The most suspicious so many of the drawn suggestions."""

    size: int
    rest: int  # nobody decided about
    seen: int
    right: int
    low: float  # bounds on the precision of the rest
    high: float


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What is known of the drawn suggestions; all bounds hold together, at every look, with the confidence."""

    confidence: float
    population: int
    seen: int
    right: int
    depths: Sequence[Depth]

    def deepest(self, precision: float) -> Depth | None:
        """The deepest depth whose rest is at least so precise; None if none is, or nothing is left there."""
        if not self.depths:
            return None
        place = int(deepest(np.array([depth.low for depth in self.depths]), precision))
        return self.depths[place] if place >= 0 and self.depths[place].rest else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def looked_at(draw: Draw, decisions: Mapping[str, Decision]) -> int:
    """How far the random order was looked at without a gap."""
    for turn, sample_id in enumerate(draw.in_turn):
        decision = decisions.get(sample_id)
        if decision is None or not decision.looked_at:
            return turn
    return len(draw.in_turn)


def promise(draw: Draw, decisions: Mapping[str, Decision], confidence: float) -> Promise:
    """The precision of the rest at each depth, from what people decided."""
    count = looked_at(draw, decisions)
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
    return Promise(confidence=confidence, population=len(draw.ids), seen=count, right=right, depths=depths)


def _seen(draw: Draw, decisions: Mapping[str, Decision], count: int) -> Seen:
    size = len(draw.ids)
    own = [decisions.get(sample_id) for sample_id in draw.ids]
    decided_N = np.array([decision is not None for decision in own], bool)
    fits = zip(own, draw.suggested, strict=True)
    right_N = np.array([decision is not None and decision.label == suggested for decision, suggested in fits], bool)
    looked_N = np.array([decision is not None and decision.looked_at for decision in own], bool)
    seen_N = np.zeros(size, bool)
    seen_N[draw.order_N[:count]] = True

    def within(flags_N: Any) -> Any:
        return np.concatenate([[0], np.cumsum(flags_N)])[draw.depth_J]

    return Seen(
        size_J=draw.depth_J,
        seen_J=within(seen_N),
        right_J=within(seen_N & right_N),
        decided_J=within(decided_N),
        decided_right_least_J=within(looked_N & right_N),
        decided_right_most_J=within(right_N | (decided_N & ~looked_N)),
    )


def further_looks(found: Promise, precision: float) -> int | None:
    """About how many more looks it takes until some depth is as precise, if the rest is as it was so far.

    None if so far it is not precise enough for that anywhere.
    """
    if not found.depths or found.deepest(precision) is not None:
        return 0 if found.depths else None
    size_J = np.array([depth.size for depth in found.depths])
    seen_J = np.array([depth.seen for depth in found.depths])
    right_J = np.array([depth.right for depth in found.depths])
    decided_J = size_J - np.array([depth.rest for depth in found.depths])
    rate_J = np.where(seen_J > 0, right_J / np.maximum(seen_J, 1), 1.0)
    left = found.population - found.seen
    more = np.unique(np.geomspace(1, max(1, min(left, _FURTHER)), 60).astype(int))[:, None]
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
class Share:
    """A share of a part, from its random sample, with bounds that hold at every look."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class PartReview:
    """What was decided about the labels of a part, and what follows."""

    part: str
    labels: int
    decided: int
    changed: int
    removed: int
    sampled: int  # of its random order
    wrong: Share | None  # labels, from the random sample; removed ones count as wrong
    accuracy_given: float | None
    accuracy_reviewed: float | None  # by the labels as they are now, without the removed ones
    accuracy_true: Share | None  # unbiased, from the random sample; bounds hold whatever the removed ones are

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def review_part(
    verdicts: Verdicts, part: str, decisions: Mapping[str, Decision], draw: Draw | None, confidence: float
) -> PartReview:
    """The labels of a part as given, as decided, and as its random sample has them."""
    number: dict[str | None, int] = {name: k for k, name in enumerate(verdicts.classes)}
    rows = verdicts.rows_of(part)
    given_n, predicted_n = verdicts.given_N[rows], verdicts.predicted_N[rows]
    own = [decisions.get(verdicts.ids[row]) for row in rows.tolist()]
    decided_n = np.array([decision is not None for decision in own], bool)
    now_n = np.array(
        [
            given if decision is None else number.get(decision.label, -1)
            for given, decision in zip(given_n, own, strict=True)
        ]
    )
    removed_n = decided_n & (now_n < 0)
    known_n = predicted_n >= 0
    told_n = known_n & ~removed_n
    count, wrong, true = 0, None, None
    if draw is not None and (count := looked_at(draw, decisions)):
        place = {sample_id: i for i, sample_id in enumerate(verdicts.ids[row] for row in rows.tolist())}
        sample = np.array([place[sample_id] for sample_id in draw.in_turn[:count] if sample_id in place], int)
        errors = int((now_n[sample] != given_n[sample]).sum())
        wrong = _share(len(draw.ids), count, errors, errors, confidence)
        hits, open_ = int((told_n & (now_n == predicted_n))[sample].sum()), int(removed_n[sample].sum())
        if known_n[sample].all() and count > open_:
            true = _share(len(draw.ids), count, hits, hits + open_, confidence, hits / (count - open_))
    return PartReview(
        part=part,
        labels=len(rows),
        decided=int(decided_n.sum()),
        changed=int((decided_n & ~removed_n & (now_n != given_n)).sum()),
        removed=int(removed_n.sum()),
        sampled=count,
        wrong=wrong,
        accuracy_given=float((predicted_n == given_n)[known_n].mean()) if known_n.any() else None,
        accuracy_reviewed=float((predicted_n == now_n)[told_n].mean()) if told_n.any() else None,
        accuracy_true=true,
    )


def _share(size: int, count: int, least: int, most: int, confidence: float, value: float | None = None) -> Share:
    """A share of `size` samples, of which so many of `count` looked at have it, at least and at most."""
    numbers = (np.array(size), np.array(count))
    low = least_right(*numbers, np.array(least), 1 - confidence)
    high = most_right(*numbers, np.array(most), 1 - confidence)
    return Share(value=least / count if value is None else value, low=float(low) / size, high=float(high) / size)
