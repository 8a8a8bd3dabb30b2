"""Softmax regression on fixed features: many independent heads are fitted at once by minimising a convex loss.

    L_p(W_p, b_p) = 1 / (sum_i w_pi)  sum_i w_pi sum_k -t_pik log softmax(W_p' x_i + b_p)_k  +  decay_p / 2 |W_p|^2

A problem p is a fold (w_pi = 0 for held-out samples), a weight decay, or both. All problems share the features, so the
heads are stacked and one matrix product serves them all. The loss is minimised by full-batch L-BFGS. Each problem has a
separate direction and step size, and all advance in lockstep: a problem whose step was too long halves it while the
others take their next step. The fit is deterministic.

Features are first rotated to their principal axes (`PrincipalAxes`). The penalty is invariant to rotation, but on these
axes the Hessian is nearly diagonal, c_pk s_d^2 + decay_p. Preconditioning with it reduces the number of passes from
hundreds to tens. With fewer samples than features, there are at most as many axes as samples.

Heads are stored as P×K×D while they are fitted, so logits are P×K×n: with few classes, a softmax along the last
dimension would take longer than the matrix products.

Shapes: N samples, n of a chunk, F features, D axes (the last one constant), P problems, p of them with weight in a
chunk, T tables of targets, K classes.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from selfadapt.data.input_statistics import feature_scale

_CHUNK_NUMBERS = 2**24  # maximum number of logits in a chunk
_LEAST_COLUMNS = 2**14  # counted per sample, so that a chunk has at most 1,024 samples and stays in the cache
_MEMORY = 8  # history size of L-BFGS
_SUFFICIENT_DECREASE = 1e-4  # fraction of the expected decrease (Armijo rule)
_LEAST_VARIANCE = 1e-6  # relative to the largest one; axes below it hold only rounding errors
_MOST_BOUNDS = 64  # with more changes of the active problems between samples, nothing is skipped
_LEAST_LOGITS = 2**14  # in a chunk, on average; skipping samples of zero weight saves less than more chunks cost


@dataclass(frozen=True)
class PrincipalAxes:
    """Standardised features rotated to their principal axes, with a constant at the end for the bias."""

    mean_F: Tensor
    turn_FD: Tensor  # standardises, rotates, and divides by one number
    variance_D: Tensor  # of each axis, except the constant

    @classmethod
    def of(cls, features_NF: Tensor) -> "PrincipalAxes":
        features_NF = features_NF.float()
        mean_F = features_NF.mean(0)
        scale_F = 1 / feature_scale(features_NF)
        count, width = features_NF.shape
        if count < width:
            centred_NF = (features_NF - mean_F) * scale_F
            variance_D, left_ND = torch.linalg.eigh(_to_double(centred_NF @ centred_NF.T) / count)
            keep = variance_D > _LEAST_VARIANCE * variance_D[-1]
            variance_D, left_ND = variance_D[keep], left_ND[:, keep]
            turn_FD = (centred_NF.T @ left_ND.float()) / (variance_D * count).sqrt().float()
        else:
            moment_FF = torch.zeros(width, width, dtype=_double_dtype(features_NF))
            for chunk_nF in features_NF.split(max(1, _CHUNK_NUMBERS // width)):
                centred_nF = (chunk_nF - mean_F) * scale_F
                moment_FF += centred_nF.T @ centred_nF
            variance_D, turn = torch.linalg.eigh(moment_FF / count)
            keep = variance_D > _LEAST_VARIANCE * variance_D[-1]
            variance_D, turn_FD = variance_D[keep], turn[:, keep].float()
        norm = variance_D.sum().sqrt().clamp_min(1e-12)  # makes the mean squared norm of a sample 1
        turn_FD = scale_F.unsqueeze(1) * turn_FD / norm.float()
        return cls(mean_F, turn_FD.flip(1).contiguous(), (variance_D / norm**2).float().flip(0))

    def first(self, count: int) -> "PrincipalAxes":
        """Only the `count` axes of largest variance."""
        return PrincipalAxes(self.mean_F, self.turn_FD[:, :count].contiguous(), self.variance_D[:count])

    def __call__(self, features_NF: Tensor) -> Tensor:
        """The features on these axes: N×D."""
        axes_ND = torch.ones(len(features_NF), self.turn_FD.shape[1] + 1)
        size = max(1, _CHUNK_NUMBERS // self.turn_FD.shape[0])
        for start in range(0, len(features_NF), size):
            chunk = slice(start, start + size)
            axes_ND[chunk, :-1] = (features_NF[chunk].float() - self.mean_F) @ self.turn_FD
        return axes_ND


def _double_dtype(like: Tensor) -> torch.dtype:
    return torch.float32 if like.device.type == "mps" else torch.float64


def _to_double(matrix: Tensor) -> Tensor:
    return matrix.to(_double_dtype(matrix))


def pieces_of(count: int, columns: int) -> list[slice]:
    """Split `count` samples into chunks so that a table with this number of columns stays small."""
    size = max(1, _CHUNK_NUMBERS // columns)
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def logits(axes_ND: Tensor, heads_DPK: Tensor) -> Tensor:
    """The logits of each problem (N×P×K)."""
    width, problems, classes = heads_DPK.shape
    return (axes_ND @ heads_DPK.view(width, problems * classes)).view(len(axes_ND), problems, classes)


def fit_heads(
    axes_ND: Tensor,
    targets_NTK: Tensor,
    weights_NP: Tensor,
    decay_P: Tensor,
    start_DPK: Tensor,
    *,
    table_P: Tensor | None = None,
    passes: int,
    tolerance: float = 1e-4,
) -> Tensor:
    """Minimise L_p from `start_DPK`, in at most `passes` passes, and return the heads (D×P×K).

    `table_P` selects the table of targets of each problem; by default all use the first. A problem stops when its
    expected decrease is below `tolerance` (in nats per sample). Contiguous samples of zero weight are skipped.
    """
    if table_P is None:
        table_P = torch.zeros(len(decay_P), dtype=torch.int64)
    loss = _Loss(axes_ND, targets_NTK, table_P, weights_NP, decay_P)
    heads_PKD = start_DPK.permute(1, 2, 0).contiguous()
    value_P, slope_PKD, spread_PK = loss(heads_PKD)
    memory: list[tuple[Tensor, Tensor, Tensor]] = []
    direction_PKD = slope_PKD.neg() / loss.curvature(spread_PK)
    expected_P = _dot(slope_PKD, direction_PKD)
    step_P = torch.ones_like(value_P)
    for _ in range(passes - 1):
        active_P = -0.5 * expected_P > tolerance  # each problem stops independently of the others
        if not bool(active_P.any()):
            break
        trial_PKD = heads_PKD + direction_PKD * step_P.view(-1, 1, 1)
        trial_value_P, trial_slope_PKD, trial_spread_PK = loss(trial_PKD)
        accepted_P = trial_value_P <= value_P + _SUFFICIENT_DECREASE * step_P * expected_P + 1e-7 * value_P.abs()
        accepted_P &= active_P
        accepted_P11 = accepted_P.view(-1, 1, 1)
        step_PKD = torch.where(accepted_P11, trial_PKD - heads_PKD, 0.0)
        slope_change_PKD = torch.where(accepted_P11, trial_slope_PKD - slope_PKD, 0.0)
        heads_PKD = torch.where(accepted_P11, trial_PKD, heads_PKD)
        slope_PKD = torch.where(accepted_P11, trial_slope_PKD, slope_PKD)
        value_P = torch.where(accepted_P, trial_value_P, value_P)
        spread_PK = torch.where(accepted_P.unsqueeze(1), trial_spread_PK, spread_PK)
        curvature_P = _dot(step_PKD, slope_change_PKD)
        memory = [*memory[1 - _MEMORY :], (step_PKD, slope_change_PKD, curvature_P)]
        new_direction_PKD = _direction(slope_PKD, memory, loss.curvature(spread_PK))
        direction_PKD = torch.where(accepted_P11, new_direction_PKD, direction_PKD)
        step_P = torch.where(accepted_P, 1.0, step_P * 0.5)
        expected_P = _dot(slope_PKD, direction_PKD)
    return heads_PKD.permute(2, 0, 1).contiguous()


def _dot(a_PKD: Tensor, b_PKD: Tensor) -> Tensor:
    product_P: Tensor = torch.linalg.vecdot(a_PKD.flatten(1), b_PKD.flatten(1))
    return product_P


def _direction(slope_PKD: Tensor, memory: list[tuple[Tensor, Tensor, Tensor]], curvature_PKD: Tensor) -> Tensor:
    """The two-loop recursion of L-BFGS. Each problem skips the passes in which its step was rejected."""
    direction_PKD = slope_PKD.neg()
    coefficients: list[Tensor] = []
    for step_PKD, slope_change_PKD, curvature_P in reversed(memory):
        coefficient_P = torch.where(curvature_P > 0, _dot(step_PKD, direction_PKD) / curvature_P, 0.0)
        direction_PKD -= coefficient_P.view(-1, 1, 1) * slope_change_PKD
        coefficients.append(coefficient_P)
    scale_P = torch.ones_like(slope_PKD[:, 0, 0])
    for _, slope_change_PKD, curvature_P in memory:  # the last accepted step sets the scale
        size_P = _dot(slope_change_PKD, slope_change_PKD / curvature_PKD)
        scale_P = torch.where((curvature_P > 0) & (size_P > 0), curvature_P / size_P, scale_P)
    direction_PKD *= scale_P.view(-1, 1, 1) / curvature_PKD
    for (step_PKD, slope_change_PKD, curvature_P), coefficient_P in zip(memory, reversed(coefficients), strict=True):
        correction_P = torch.where(curvature_P > 0, _dot(slope_change_PKD, direction_PKD) / curvature_P, 0.0)
        direction_PKD += (coefficient_P - correction_P).view(-1, 1, 1) * step_PKD
    return direction_PKD


class _Loss:
    """L_p and its gradient over all samples."""

    def __init__(
        self, axes_ND: Tensor, targets_NTK: Tensor, table_P: Tensor, weights_NP: Tensor, decay_P: Tensor
    ) -> None:
        self.axes_ND, self.targets_NTK, self.table_P = axes_ND, targets_NTK, table_P
        self.weights_NP = weights_NP / weights_NP.sum(0).clamp_min(1e-12)
        self.chunks = _chunks(weights_NP, targets_NTK.shape[2])
        self.decay_P1D = decay_P.view(-1, 1, 1).repeat(1, 1, axes_ND.shape[1])
        self.decay_P1D[..., -1] = 0
        square_D = torch.stack([axes_nD.square().sum(0) for axes_nD in axes_ND.split(1024)]).sum(0)
        self.square_D = square_D / len(axes_ND)

    def __call__(self, heads_PKD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """L_p, its gradient, and the mean of p (1 - p) for each class."""
        value_P = torch.zeros(len(heads_PKD))
        slope_PKD = torch.zeros_like(heads_PKD)
        spread_PK = torch.zeros_like(heads_PKD[..., 0])
        for chunk, active_p in self.chunks:
            axes_nD, weights_pn = self.axes_ND[chunk], self.weights_NP[chunk].T[active_p]
            targets_pKn = self.targets_NTK[chunk].permute(1, 2, 0).float().contiguous()
            if len(targets_pKn) > 1:
                targets_pKn = targets_pKn[self.table_P[active_p]]
            heads_pKD = heads_PKD[active_p]
            log_pKn = (heads_pKD.flatten(0, 1) @ axes_nD.T).view(*heads_pKD.shape[:2], -1).log_softmax(1)
            value_P[active_p] -= ((log_pKn * targets_pKn).sum(1) * weights_pn).sum(1)
            p_pKn = log_pKn.exp_()
            variance_pKn = torch.addcmul(p_pKn, p_pKn, p_pKn, value=-1)
            spread_PK[active_p] += (variance_pKn @ weights_pn.unsqueeze(2)).squeeze(2)
            error_pKn = p_pKn.sub_(targets_pKn).mul_(weights_pn.unsqueeze(1))
            slope_PKD[active_p] += (error_pKn.flatten(0, 1) @ axes_nD).view(heads_pKD.shape)
        penalty_PKD = self.decay_P1D * heads_PKD
        value_P += 0.5 * _dot(penalty_PKD, heads_PKD)
        return value_P, slope_PKD + penalty_PKD, spread_PK

    def curvature(self, spread_PK: Tensor) -> Tensor:
        """The approximate diagonal of the Hessian (P×K×D).

        It must be updated with the predictions. The curvature of a head with confident predictions is a hundred times
        smaller than at the start, and with the initial value the fit would seem converged too early: with fewer samples
        than features after a single step, at a head that fits the noise.
        """
        return self.square_D * spread_PK.clamp_min(1e-6).unsqueeze(2) + self.decay_P1D


def _chunks(weights_NP: Tensor, classes: int) -> list[tuple[slice, Tensor]]:
    """Split the samples into chunks, each with the problems in which it has weight."""
    used_NP = weights_NP > 0
    changes = (used_NP[1:] != used_NP[:-1]).any(1).nonzero().flatten().add(1).tolist()
    worth = len(changes) <= _MOST_BOUNDS and used_NP.numel() * classes >= _LEAST_LOGITS * len(changes)
    bounds = [0, *(changes if worth else []), len(used_NP)]
    chunks = []
    for start, end in pairwise(bounds):
        for chunk in pieces_of(end - start, max(_LEAST_COLUMNS, weights_NP.shape[1] * classes)):
            chunk = slice(start + chunk.start, start + chunk.stop)
            chunks.append((chunk, used_NP[chunk].any(0).nonzero().flatten()))
    return [(chunk, active_p) for chunk, active_p in chunks if len(active_p)]
