"""Risk and coverage of a model that answers only where it is confident.

The model answers if its confidence is at least a threshold. Coverage is the share of answered samples, risk the error
rate among them. Samples of equal confidence are indistinguishable, so each counts as wrong with the error rate among
them, and the result does not depend on their order.

Shapes: N samples.
"""

import math

import torch
from torch import Tensor

COVERAGES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)


def threshold_for(confidence_N: Tensor, coverage: float) -> float:
    """Return the largest threshold with at least this coverage; minus infinity for full coverage."""
    if not 0 < coverage <= 1:
        raise ValueError(f"coverage must be above 0 and at most 1, not {coverage}")
    if coverage == 1 or not len(confidence_N):
        return -torch.inf
    return confidence_N.sort(descending=True).values[_answered(len(confidence_N), coverage) - 1].item()


def risk_at(confidence_N: Tensor, wrong_N: Tensor, threshold: float) -> tuple[float | None, float]:
    """Return risk and coverage at a threshold; the risk is None if no sample is answered."""
    answered_N = confidence_N >= threshold
    coverage = answered_N.double().mean().item()
    return (wrong_N[answered_N].double().mean().item() if answered_N.any() else None), coverage


def risk_coverage_curve(confidence_N: Tensor, wrong_N: Tensor) -> tuple[Tensor, Tensor]:
    """Return coverage and risk at 1, 2, … N answered samples, the most confident first."""
    order_N = confidence_N.argsort(descending=True, stable=True)
    _, group_N, sizes = confidence_N[order_N].unique_consecutive(return_inverse=True, return_counts=True)
    errors = torch.zeros(len(sizes), dtype=torch.float64).index_add_(0, group_N, wrong_N[order_N].double())
    expected_N = (errors / sizes)[group_N]
    answered_N = torch.arange(1, len(order_N) + 1, dtype=torch.float64)
    return answered_N / len(order_N), expected_N.cumsum(0) / answered_N


def exact_risk(risk_N: Tensor, coverage: float) -> float:
    """Return the risk at exactly this coverage, rounded up to a sample, from the risks of `risk_coverage_curve`."""
    return risk_N[_answered(len(risk_N), coverage) - 1].item()


def _answered(count: int, coverage: float) -> int:
    return max(1, math.ceil(coverage * count - 1e-9))


def aurc(confidence_N: Tensor, wrong_N: Tensor) -> float:
    """Return the area under the risk-coverage curve: the mean of its risks."""
    return risk_coverage_curve(confidence_N, wrong_N)[1].mean().item()


def excess_aurc(confidence_N: Tensor, wrong_N: Tensor) -> float:
    """Return the area in excess of that of the best ranking, which has all errors last."""
    return aurc(confidence_N, wrong_N) - aurc(-wrong_N.double(), wrong_N)
