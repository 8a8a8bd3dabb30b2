"""Proposition 1 and its corollary (Section 2.2, Appendix A) as a program: a self-adaptive linear regression.

    theta <- theta - eta X^T (X theta - t)
    t     <- alpha t + (1 - alpha) X theta                       with the new theta

The residual X theta - t is multiplied by alpha (I - eta X X^T) in each step. So it goes to 0 for every start if and
only if alpha |1 - eta d| < 1 for all n eigenvalues d of X X^T, which is eta < (alpha + 1) / (alpha d_max); and then it
shrinks, in the end, by the largest of these factors. All n eigenvalues count, zeros included: with more samples than
rank the factor is alpha at least. (The appendix takes X^T X, which would lose the zeros.)

Shapes: n samples, d dimensions, S steps.
"""

import torch
from torch import Tensor

_SEEN = 1e-12  # of the first residual: below, it is rounding
_LATE = 8  # steps


def largest_rate(inputs_nd: Tensor, alpha: float) -> float:
    """The learning rate below which the residual vanishes: (alpha + 1) / (alpha d_max)."""
    return (alpha + 1) / (alpha * float(_eigenvalues(inputs_nd).max()))


def factor(inputs_nd: Tensor, alpha: float, eta: float) -> float:
    """By how much the residual shrinks (below 1) or grows in a step, in the end: max alpha |1 - eta d| over all d."""
    return float((alpha * (1 - eta * _eigenvalues(inputs_nd)).abs()).max())


def residuals(inputs_nd: Tensor, targets_n: Tensor, *, alpha: float, eta: float, steps: int) -> Tensor:
    """|X theta - t| before the first step and after each of `steps`, from theta = 0."""
    theta_d = torch.zeros(inputs_nd.shape[1], dtype=inputs_nd.dtype)
    norms = [(inputs_nd @ theta_d - targets_n).norm()]
    for _ in range(steps):
        theta_d = theta_d - eta * inputs_nd.T @ (inputs_nd @ theta_d - targets_n)
        targets_n = alpha * targets_n + (1 - alpha) * inputs_nd @ theta_d
        norms.append((inputs_nd @ theta_d - targets_n).norm())
    return torch.stack(norms)


def _eigenvalues(inputs_nd: Tensor) -> Tensor:
    """All n of X X^T. It has no negative ones; what rounding makes of the zeros is put right."""
    found_n: Tensor = torch.linalg.eigvalsh(inputs_nd @ inputs_nd.T)
    return found_n.clamp_min(0)


def simulate(
    *, samples: int, dimensions: int, alpha: float, rate: float, steps: int, seed: int
) -> tuple[dict[str, float], list[float]]:
    """A random regression at `rate` times the largest learning rate: what is predicted, what came, and the curve.

    The factor that came is a mean over the last steps in which rounding does not hide the residual.
    """
    generator = torch.Generator().manual_seed(seed)
    inputs_nd = torch.randn(samples, dimensions, generator=generator, dtype=torch.float64)
    targets_n = torch.randn(samples, generator=generator, dtype=torch.float64)
    eta = rate * largest_rate(inputs_nd, alpha)
    norms_S = residuals(inputs_nd, targets_n, alpha=alpha, eta=eta, steps=steps)
    seen_S = norms_S[(norms_S > _SEEN * norms_S[0]).cumprod(0).bool()]
    late_S = seen_S[-_LATE:]
    came = float((late_S[-1] / late_S[0]) ** (1 / (len(late_S) - 1)))
    found = {
        "predicted_factor": factor(inputs_nd, alpha, eta),
        "measured_factor": came,
        "first_residual": float(norms_S[0]),
        "last_residual": float(norms_S[-1]),
    }
    return found, norms_S.tolist()
