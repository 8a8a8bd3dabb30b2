"""A threshold with a risk guarantee: with a given probability, the risk on answered samples is below a bound.

Candidates answer the n most confident of N held-out samples, for n on a fixed coverage grid. The threshold of a
candidate is the confidence of the most confident sample left out; samples strictly above it are answered. Given the
threshold, the samples above it are independent draws of what the model answers, so their number of errors is binomial,
and the exact (Clopper-Pearson) bound holds for the risk. With J candidates, each bound gets 1/J of the error budget
(Bonferroni), so that all of them hold together with the requested confidence. The candidate of largest coverage whose
bound is within the risk is selected. Candidates that could not guarantee the risk even without errors are removed from
the grid first, which depends only on N, the risk and the confidence, and saves budget.

The guarantee holds for samples and labels from the distribution of the held-out ones.

Shapes: N samples.
"""

import sys
from dataclasses import dataclass

from torch import Tensor

EVERYTHING = -sys.float_info.max  # a threshold below every confidence that JSON can represent
_COVERAGE_GRID = tuple(step / 20 for step in range(20, 0, -1))  # coverages 1, 0.95, … 0.05


@dataclass(frozen=True)
class Guarantee:
    """The error rate on samples above `threshold` is at most `guaranteed_risk`."""

    threshold: float  # answer if the confidence is larger
    guaranteed_risk: float
    coverage: float  # of the held-out samples
    errors: int  # among the answered samples


def binomial_bound(errors: int, count: int, error_budget: float) -> float:
    """Return the upper confidence bound on the risk after `errors` of `count`, at level 1 - `error_budget`.

    It is the solution p of P(Binomial(count, p) <= errors) = error_budget.
    """
    if errors >= count:
        return 1.0
    from scipy.special import betaincinv

    return float(betaincinv(errors + 1, count - errors, 1 - error_budget))


def excess_p_value(errors: int, count: int, risk: float) -> float:
    """Return the probability of at least this many errors among `count` answers whose error rate is `risk`."""
    from scipy.stats import binom

    return float(binom.sf(errors - 1, count, risk))


def _sizes(count: int, risk: float, error_budget: float) -> list[int]:
    """Return the number of samples that each candidate answers, independent of the samples; at least one candidate."""
    sizes = [size for coverage in _COVERAGE_GRID if (size := round(coverage * count))]
    while len(sizes) > 1 and binomial_bound(0, sizes[-1], error_budget / len(sizes)) > risk:
        sizes.pop()
    return sizes


def candidates(confidence_N: Tensor, wrong_N: Tensor, *, risk: float, confidence: float) -> list[Guarantee]:
    """Return all candidates by decreasing coverage. Their bounds hold jointly with this confidence."""
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
    """Return the candidate of largest coverage that guarantees the risk, or None.

    Args:
        confidence_N: Confidence of each held-out sample.
        wrong_N: Whether its prediction is wrong.
        risk: Largest acceptable error rate on answered samples.
        confidence: Probability with which the guarantee must hold.

    Raises:
        ValueError: If risk or confidence are not between 0 and 1.
    """
    for name, value in (("risk", risk), ("confidence", confidence)):
        if not 0 < value < 1:
            raise ValueError(f"{name} must be between 0 and 1, not {value}")
    found = candidates(confidence_N, wrong_N, risk=risk, confidence=confidence)
    return next((candidate for candidate in found if candidate.guaranteed_risk <= risk), None)
