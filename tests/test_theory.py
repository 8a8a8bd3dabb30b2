"""Proposition 1 against its closed form, over random regressions: the residual is (alpha (I - eta X X^T))^k b."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfadapt.theory import factor, largest_rate, residuals, simulate

SHAPES = st.tuples(st.integers(1, 8), st.integers(1, 8))
ALPHAS = st.floats(0.05, 0.99)


def _problem(shape: tuple[int, int], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return inputs, torch.randn(shape[0], generator=generator, dtype=torch.float64)


def _factors(inputs: torch.Tensor, alpha: float, eta: float) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
    """alpha |1 - eta d| for the squared singular values d, and alpha for each dimension of samples beyond the rank."""
    singular = np.linalg.svd(inputs.numpy(), compute_uv=False)
    every = np.zeros(len(inputs))
    every[: len(singular)] = singular**2
    return np.abs(alpha * (1 - eta * every))


@settings(max_examples=60)
@given(shape=SHAPES, alpha=ALPHAS, rate=st.floats(0.05, 1.2), seed=st.integers(0, 2**31))
def test_residuals_are_those_of_the_closed_form(shape: tuple[int, int], alpha: float, rate: float, seed: int) -> None:
    inputs, targets = _problem(shape, seed)
    eta = rate * largest_rate(inputs, alpha)
    steps = 12
    step = alpha * (np.eye(shape[0]) - eta * inputs.numpy() @ inputs.numpy().T)
    expected = [float(np.linalg.norm(np.linalg.matrix_power(step, k) @ -targets.numpy())) for k in range(steps + 1)]
    found = residuals(inputs, targets, alpha=alpha, eta=eta, steps=steps).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9 * max(1.0, max(expected)))


@settings(max_examples=60)
@given(shape=SHAPES, alpha=ALPHAS, seed=st.integers(0, 2**31))
def test_the_bound_parts_shrinking_from_growing(shape: tuple[int, int], alpha: float, seed: int) -> None:
    inputs, _ = _problem(shape, seed)
    bound = largest_rate(inputs, alpha)
    largest = np.linalg.svd(inputs.numpy(), compute_uv=False).max() ** 2
    assert bound == pytest.approx((alpha + 1) / (alpha * largest), rel=1e-9)
    for rate in (0.1, 0.5, 0.999, 1.001, 1.5):
        predicted = factor(inputs, alpha, rate * bound)
        assert predicted == pytest.approx(_factors(inputs, alpha, rate * bound).max(), rel=1e-7)
        assert (predicted < 1) == (rate < 1)


@settings(max_examples=40)
@given(dimensions=st.integers(1, 5), more=st.integers(1, 5), alpha=ALPHAS, seed=st.integers(0, 2**31))
def test_samples_beyond_the_rank_shrink_by_alpha_at_best(dimensions: int, more: int, alpha: float, seed: int) -> None:
    inputs, _ = _problem((dimensions + more, dimensions), seed)
    small = 1e-3 * largest_rate(inputs, alpha)
    assert factor(inputs, alpha, small) == pytest.approx(alpha, rel=1e-9)


@pytest.mark.parametrize("rate", [0.3, 0.95, 1.02])
@pytest.mark.parametrize(("samples", "dimensions"), [(30, 8), (8, 30)])
def test_the_rate_in_the_end_is_the_predicted_one(samples: int, dimensions: int, rate: float) -> None:
    found, curve = simulate(samples=samples, dimensions=dimensions, alpha=0.9, rate=rate, steps=400, seed=1)
    assert found["measured_factor"] == pytest.approx(found["predicted_factor"], abs=0.01)
    assert (curve[-1] < curve[0]) == (rate < 1)
    if rate < 1:
        assert curve[-1] < 1e-6 * curve[0]
