"""How many labels are wrong, by what people decided: bounds for each stratum, and for several together.

A split has two strata by rank: its likely errors, and all other labels. Within a stratum the random order of a draw is
a random order, too, so the bounds of promise.py hold for it at every look. Decisions that were not in a random order
are known, and bound the number from both sides, but say nothing of the rest. Over S strata the numbers add up, each
with 1/S of the error budget.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from selfadapt.review.journal import Decision
from selfadapt.review.statistics.draws import SUGGESTIONS, Draw
from selfadapt.review.statistics.measured import looked_at
from selfadapt.review.statistics.precision_bound import Numbers, least_right, most_right
from selfadapt.run_folder.labels_file import Verdicts

_PRIOR_LOOKS = 10  # what the audit's estimate of a stratum is worth beside looks
_GRID = 80  # numbers of further looks that are tried


@dataclass(frozen=True, kw_only=True)
class RandomLooks:
    """A random order over labels of a stratum, as far as it was looked at."""

    population: int
    seen: int
    wrong: int
    other_wrong: int  # of the stratum but not of the population, by other decisions
    other_right: int


@dataclass(frozen=True, kw_only=True)
class Stratum:
    size: int
    expected: float  # share of wrong labels, by the audit
    known_wrong: int  # looked at, in whatever order
    known_right: int
    looks: Sequence[RandomLooks]
    orders: int  # random orders that there may be; each gets its share of the error budget

    @property
    def rest(self) -> int:
        return self.size - self.known_wrong - self.known_right

    @property
    def is_measured(self) -> bool:
        """Whether anything is known of what nobody looked at, or there is nothing left."""
        return self.rest == 0 or any(own.seen for own in self.looks)

    @property
    def rate(self) -> float:
        """The share of wrong labels among the rest: by random looks, and by the audit while they are few."""
        best = max(self.looks, key=lambda own: own.seen, default=None)
        seen, wrong = (0, 0) if best is None else (best.seen, best.wrong)
        return (wrong + _PRIOR_LOOKS * self.expected) / (seen + _PRIOR_LOOKS)

    def bounds(self, error_budget: float) -> tuple[int, int]:
        """The fewest and the most wrong labels that are not refuted."""
        low, high = self.known_wrong, self.size - self.known_right
        for own in self.looks:
            numbers, budget = (own.population, own.seen, own.wrong), error_budget / self.orders
            low = max(low, int(least_right(*numbers, budget)) + own.other_wrong)
            high = min(high, int(most_right(*numbers, budget)) + self.size - own.population - own.other_right)
        return low, max(low, high)


def strata_of(
    verdicts: Verdicts, split: str, decisions: Mapping[str, Decision], draws: Mapping[str, Draw]
) -> tuple[Stratum, Stratum]:
    """The likely errors of a split, and its other labels. Labels that were not judged count in neither."""
    judged_N = np.isfinite(verdicts.p_wrong_N)
    in_split_N = (verdicts.part_N == verdicts.parts.index(split)) & (judged_N | ~judged_N.any())
    found = []
    for likely_errors in (True, False):
        rows = np.flatnonzero(in_split_N & (verdicts.suspect_N == likely_errors))
        p_wrong_n = verdicts.p_wrong_N[rows]
        known_n = np.isfinite(p_wrong_n)
        wrong = _looked_at(verdicts, rows.tolist(), decisions)
        names = [split, *([SUGGESTIONS] if likely_errors and split == "train" else [])]
        members = {verdicts.ids[row] for row in rows.tolist()}
        looks = [_looks(draws[name], members, wrong, decisions) for name in names if name in draws]
        found.append(
            Stratum(
                size=len(rows),
                expected=float(p_wrong_n[known_n].mean()) if known_n.any() else float(likely_errors),
                known_wrong=sum(wrong.values()),
                known_right=len(wrong) - sum(wrong.values()),
                looks=[own for own in looks if own is not None],
                orders=len(names),
            )
        )
    return found[0], found[1]


def _looked_at(verdicts: Verdicts, rows: Sequence[int], decisions: Mapping[str, Decision]) -> dict[str, bool]:
    """Whether the label is wrong, of each of these rows that somebody looked at. What was removed counts as wrong."""
    found = {}
    for row in rows if decisions else ():
        own = decisions.get(verdicts.ids[row])
        if own is not None and own.looked_at:
            found[verdicts.ids[row]] = own.label != verdicts.classes[verdicts.given_N[row]]
    return found


def _looks(
    draw: Draw, members: set[str], wrong: Mapping[str, bool], decisions: Mapping[str, Decision]
) -> RandomLooks | None:
    """What a draw says of the members of a stratum; None where a later audit moved suggestions out of it."""
    own = members.intersection(draw.ids)
    if draw.of == SUGGESTIONS and len(own) < len(draw.ids):
        return None
    seen = [sample_id for sample_id in draw.in_turn[: looked_at(draw, decisions)] if sample_id in own]
    others = [value for sample_id, value in wrong.items() if sample_id not in own]
    return RandomLooks(
        population=len(own),
        seen=len(seen),
        wrong=sum(wrong[sample_id] for sample_id in seen),
        other_wrong=sum(others),
        other_right=len(others) - sum(others),
    )


def bounds(strata: Sequence[Stratum], confidence: float) -> tuple[int, int]:
    """The fewest and the most wrong labels in all of these, with this confidence at every look."""
    found = [own.bounds((1 - confidence) / len(strata)) for own in strata]
    return sum(low for low, _ in found), sum(high for _, high in found)


def further_random_looks(strata: Sequence[Stratum], confidence: float, width: float) -> int:
    """About how many more looks in random order bring the bounds on the error rate to ± `width`; 0 if they are there.

    The rest is taken to be as wrong as it seems so far.
    """
    size, rest = sum(own.size for own in strata), sum(own.rest for own in strata)
    low, high = bounds(strata, confidence)
    if high - low <= 2 * width * size:
        return 0
    more_M = np.unique(np.geomspace(1, max(1, rest), _GRID).astype(int))
    wide_M = sum(_width_after(own, more_M, rest, (1 - confidence) / len(strata)) for own in strata)
    enough = np.flatnonzero(wide_M <= 2 * width * size)
    return int(more_M[enough[0]]) if len(enough) else rest


def _width_after(own: Stratum, more_M: Numbers, rest: int, error_budget: float) -> Numbers:
    """The most less the fewest wrong labels of a stratum after each of so many more looks at the whole split."""
    best = max(own.looks, key=lambda looks: looks.seen, default=None)
    population, seen, wrong = (own.size, 0, 0) if best is None else (best.population, best.seen, best.wrong)
    added_M = np.minimum(np.round(more_M * own.rest / max(rest, 1)).astype(int), population - seen)
    seen_M, wrong_M = seen + added_M, wrong + np.round(added_M * own.rate).astype(int)
    budget = error_budget / own.orders
    low_M = least_right(np.full_like(seen_M, population), seen_M, wrong_M, budget)
    high_M = most_right(np.full_like(seen_M, population), seen_M, wrong_M, budget)
    return np.minimum(high_M - low_M + own.size - population, np.maximum(own.rest - added_M, 0))
