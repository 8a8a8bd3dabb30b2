"""Bounds on the number of wrong labels, from decisions, for each stratum and for several together.

A split has two strata: its likely errors, and all other labels. Within a stratum, the random order of a draw is a
random order as well, so the bounds of precision_bound.py hold for it at all times. Other decisions bound the number
from both sides, but do not generalise to the rest. The bounds of S strata are added, each with 1/S of the error budget.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from selfadapt.evaluation.label_errors.report import Array, LabelErrorReport
from selfadapt.review.journal import Decision
from selfadapt.review.statistics.draws import SUGGESTIONS, Draw
from selfadapt.review.statistics.measurement import reviewed_in_order
from selfadapt.review.statistics.precision_bound import Numbers, least_right, most_right

_PRIOR_CHECKS = 10  # weight of the audit's estimate, in random checks
_GRID = 80  # numbers of further checks to try


@dataclass(frozen=True, kw_only=True)
class RandomChecks:
    """The reviewed beginning of a random order over labels of a stratum."""

    population: int
    seen: int
    wrong: int
    other_wrong: int  # in the stratum but not in the population, by other decisions
    other_right: int


@dataclass(frozen=True, kw_only=True)
class Stratum:
    size: int
    expected: float  # error rate estimated by the audit
    known_wrong: int  # by individual decisions in any order
    known_right: int
    checks: Sequence[RandomChecks]
    orders: int  # number of random orders there can be; they share the error budget

    @property
    def rest(self) -> int:
        return self.size - self.known_wrong - self.known_right

    @property
    def is_measured(self) -> bool:
        """Whether random checks exist, or nothing is left to check."""
        return self.rest == 0 or any(own.seen for own in self.checks)

    @property
    def rate(self) -> float:
        """The error rate among the rest: by random checks, and by the audit while there are few."""
        return (self.best.wrong + _PRIOR_CHECKS * self.expected) / (self.best.seen + _PRIOR_CHECKS)

    @property
    def best(self) -> RandomChecks:
        """The random order with the most checks; without any, one over the whole stratum."""
        none = RandomChecks(population=self.size, seen=0, wrong=0, other_wrong=0, other_right=0)
        return max(self.checks, key=lambda own: own.seen, default=none)

    def bounds(self, error_budget: float) -> tuple[int, int]:
        """The smallest and the largest number of wrong labels that are not refuted."""
        low, high = self.known_wrong, self.size - self.known_right
        for own in self.checks:
            numbers, budget = (own.population, own.seen, own.wrong), error_budget / self.orders
            low = max(low, int(least_right(*numbers, budget)) + own.other_wrong)
            high = min(high, int(most_right(*numbers, budget)) + self.size - own.population - own.other_right)
        return low, max(low, high)


def strata_of(
    report: LabelErrorReport, split: str, decisions: Mapping[str, Decision], draws: Mapping[str, Draw]
) -> tuple[Stratum, Stratum]:
    """The likely errors of a split, and its other labels. Labels that were not judged are in neither."""
    judged_N = report.is_judged if report.is_judged.any() else np.ones(len(report), bool)
    in_split = report.rows_of(split)
    found = []
    for likely_errors in (True, False):
        rows = in_split[judged_N[in_split] & (report.is_error[in_split] == likely_errors)]
        p_wrong_n = report.p_wrong[rows]
        known_n = np.isfinite(p_wrong_n)
        wrong = _individually_decided(report, rows, decisions)
        names = [split, *([SUGGESTIONS] if likely_errors and split == "train" else [])]
        members = set(report.ids[rows].tolist())
        checks = [_random_checks(draws[name], members, wrong, decisions) for name in names if name in draws]
        found.append(
            Stratum(
                size=len(rows),
                expected=float(p_wrong_n[known_n].mean()) if known_n.any() else float(likely_errors),
                known_wrong=sum(wrong.values()),
                known_right=len(wrong) - sum(wrong.values()),
                checks=[own for own in checks if own is not None],
                orders=len(names),
            )
        )
    return found[0], found[1]


def _individually_decided(report: LabelErrorReport, rows: Array, decisions: Mapping[str, Decision]) -> dict[str, bool]:
    """Whether the label is wrong, for each of these rows with an individual decision. Removed ones count as wrong."""
    found = {}
    for row in rows.tolist() if decisions else ():
        own = decisions.get(report.ids[row])
        if own is not None and own.individual:
            found[report.ids[row]] = own.label != report.given_labels[row]
    return found


def _random_checks(
    draw: Draw, members: set[str], wrong: Mapping[str, bool], decisions: Mapping[str, Decision]
) -> RandomChecks | None:
    """The random checks of a stratum; None if a later audit moved suggestions out of it."""
    own = members.intersection(draw.ids)
    if draw.of == SUGGESTIONS and len(own) < len(draw.ids):
        return None
    seen = [sample_id for sample_id in draw.in_order[: reviewed_in_order(draw, decisions)] if sample_id in own]
    others = [value for sample_id, value in wrong.items() if sample_id not in own]
    return RandomChecks(
        population=len(own),
        seen=len(seen),
        wrong=sum(wrong[sample_id] for sample_id in seen),
        other_wrong=sum(others),
        other_right=len(others) - sum(others),
    )


def bounds(strata: Sequence[Stratum], confidence: float) -> tuple[int, int]:
    """The smallest and the largest number of wrong labels in all strata, with this confidence at all times."""
    found = [own.bounds((1 - confidence) / len(strata)) for own in strata]
    return sum(low for low, _ in found), sum(high for _, high in found)


def further_random_checks(strata: Sequence[Stratum], confidence: float, width: float) -> int:
    """About how many more random checks narrow the bounds on the error rate to ± `width`; 0 if they are narrow enough.

    Assumes that the error rate of the rest is the current estimate.
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
    """The width of the bounds of a stratum, in labels, after each number of further checks of the whole split."""
    population, seen, wrong = own.best.population, own.best.seen, own.best.wrong
    added_M = np.minimum(np.round(more_M * own.rest / max(rest, 1)).astype(int), population - seen)
    seen_M, wrong_M = seen + added_M, wrong + np.round(added_M * own.rate).astype(int)
    budget = error_budget / own.orders
    low_M = least_right(np.full_like(seen_M, population), seen_M, wrong_M, budget)
    high_M = most_right(np.full_like(seen_M, population), seen_M, wrong_M, budget)
    return np.minimum(high_M - low_M + own.size - population, np.maximum(own.rest - added_M, 0))
