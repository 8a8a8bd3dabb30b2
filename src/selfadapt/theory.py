"""Proposition 1 and its corollary (Section 2.2, Appendix A): convergence of self-adaptive linear regression.

    theta <- theta - eta X^T (X theta - t)
    t     <- alpha t + (1 - alpha) X theta                       with the new theta

Each step multiplies the residual X theta - t by alpha (I - eta X X^T). It therefore converges to 0 from every start if
and only if alpha |1 - eta d| < 1 for all n eigenvalues d of X X^T, that is eta < (alpha + 1) / (alpha d_max). Its
asymptotic rate is the largest of these factors. All n eigenvalues count, including zeros: with more samples than rank
the rate is at least alpha. (The appendix uses X^T X, which loses the zeros.)

Shapes: n samples, d dimensions, S steps.
"""

import torch
from torch import Tensor

_ROUNDING = 1e-12  # relative to the first residual
_LAST_STEPS = 8


def largest_rate(inputs_nd: Tensor, alpha: float) -> float:
    """Return the learning rate below which the residual vanishes: (alpha + 1) / (alpha d_max)."""
    return (alpha + 1) / (alpha * float(_eigenvalues(inputs_nd).max()))


def factor(inputs_nd: Tensor, alpha: float, eta: float) -> float:
    """Return the asymptotic factor of the residual per step: max alpha |1 - eta d| over all d."""
    return float((alpha * (1 - eta * _eigenvalues(inputs_nd)).abs()).max())


def residuals(inputs_nd: Tensor, targets_n: Tensor, *, alpha: float, eta: float, steps: int) -> Tensor:
    """Return |X theta - t| before the first step and after each of `steps`, from theta = 0."""
    theta_d = torch.zeros(inputs_nd.shape[1], dtype=inputs_nd.dtype)
    norms = [(inputs_nd @ theta_d - targets_n).norm()]
    for _ in range(steps):
        theta_d = theta_d - eta * inputs_nd.T @ (inputs_nd @ theta_d - targets_n)
        targets_n = alpha * targets_n + (1 - alpha) * inputs_nd @ theta_d
        norms.append((inputs_nd @ theta_d - targets_n).norm())
    return torch.stack(norms)


def _eigenvalues(inputs_nd: Tensor) -> Tensor:
    """Return all n eigenvalues of X X^T, clamped at 0 because rounding can make them negative."""
    eigenvalues_n: Tensor = torch.linalg.eigvalsh(inputs_nd @ inputs_nd.T)
    return eigenvalues_n.clamp_min(0)


def simulate(
    *, samples: int, dimensions: int, alpha: float, rate: float, steps: int, seed: int
) -> tuple[dict[str, float], list[float]]:
    """Simulate a random regression at `rate` times the largest learning rate.

    Returns:
        The predicted and the measured factor and residuals, and the residual after each step. The measured factor is a
        mean over the last steps before the residual reaches rounding errors.
    """
    generator = torch.Generator().manual_seed(seed)
    inputs_nd = torch.randn(samples, dimensions, generator=generator, dtype=torch.float64)
    targets_n = torch.randn(samples, generator=generator, dtype=torch.float64)
    eta = rate * largest_rate(inputs_nd, alpha)
    norms_S = residuals(inputs_nd, targets_n, alpha=alpha, eta=eta, steps=steps)
    reliable_S = norms_S[(norms_S > _ROUNDING * norms_S[0]).cumprod(0).bool()]
    last_S = reliable_S[-_LAST_STEPS:]
    measured = float((last_S[-1] / last_S[0]) ** (1 / (len(last_S) - 1)))
    result = {
        "predicted_factor": factor(inputs_nd, alpha, eta),
        "measured_factor": measured,
        "first_residual": float(norms_S[0]),
        "last_residual": float(norms_S[-1]),
    }
    return result, norms_S.tolist()
