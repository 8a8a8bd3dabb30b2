"""A threshold with a risk guarantee: with a given confidence, the risk on what is answered is below a bound.

Of N held-out samples the n most confident, for n on a fixed coverage grid, are the candidates; the threshold of a
candidate is the confidence of the most confident sample left out, and answers are those strictly above it. Given that
threshold the samples above it are independent draws of what the model would answer, so the number of wrong ones among
them is binomial, and the exact (Clopper-Pearson) bound holds for its risk. The search may pick any of J candidates, so
each bound is given 1/J of the error budget (Bonferroni): all of them hold together with the confidence asked for,
whichever is picked. The largest coverage whose bound is within the risk wins. Candidates so few that even no error
among them could not guarantee the risk are not on the grid: that depends on N, the risk and the confidence alone, and
saves budget.

The guarantee is about samples drawn like the held-out ones, and about labels like theirs.

Shapes: N samples.
"""

import sys
from dataclasses import dataclass

from torch import Tensor

EVERYTHING = -sys.float_info.max  # a threshold below every confidence, and a number that JSON knows
_COVERAGE_GRID = tuple(step / 20 for step in range(20, 0, -1))  # coverages 1, 0.95, … 0.05


@dataclass(frozen=True)
class Guarantee:
    """What is answered above `threshold` is wrong less often than `guaranteed_risk`."""

    threshold: float  # answer where the confidence is larger
    guaranteed_risk: float
    coverage: float  # of the held-out samples
    errors: int  # among those that are answered


def binomial_bound(errors: int, count: int, error_budget: float) -> float:
    """The risk below which the truth lies, but for a probability of `error_budget`, if `errors` of `count` were wrong.

    The solution p of P(Binomial(count, p) <= errors) = error_budget.
    """
    if errors >= count:
        return 1.0
    from scipy.special import betaincinv

    return float(betaincinv(errors + 1, count - errors, 1 - error_budget))


def _sizes(count: int, risk: float, error_budget: float) -> list[int]:
    """How many samples each candidate answers, before any is looked at; at least one candidate."""
    sizes = [size for coverage in _COVERAGE_GRID if (size := round(coverage * count))]
    while len(sizes) > 1 and binomial_bound(0, sizes[-1], error_budget / len(sizes)) > risk:
        sizes.pop()
    return sizes


def candidates(confidence_N: Tensor, wrong_N: Tensor, *, risk: float, confidence: float) -> list[Guarantee]:
    """Every candidate with its bound, from the largest coverage down. They hold together, with this confidence."""
    ordered, error_budget = confidence_N.sort(descending=True).values, 1 - confidence
    sizes = _sizes(len(ordered), risk, error_budget)
    found = []
    for answered in sizes:
        threshold = EVERYTHING if answered == len(ordered) else float(ordered[answered])
        above_N = confidence_N > threshold
        count, errors = int(above_N.sum()), int(wrong_N[above_N].sum())
        bound = binomial_bound(errors, count, error_budget / len(sizes))
        found.append(Guarantee(threshold, bound, count / len(ordered), errors))
    return found


def guarantee(confidence_N: Tensor, wrong_N: Tensor, *, risk: float, confidence: float) -> Guarantee | None:
    """The candidate of the largest coverage that guarantees the risk; None if there is none."""
    for name, value in (("risk", risk), ("confidence", confidence)):
        if not 0 < value < 1:
            raise ValueError(f"{name} must be between 0 and 1, not {value}")
    found = candidates(confidence_N, wrong_N, risk=risk, confidence=confidence)
    return next((own for own in found if own.guaranteed_risk <= risk), None)
