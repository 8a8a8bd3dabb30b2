"""Softmax regression on fixed features: many independent heads fitted at once, to the minimum of a convex loss.

    L_p(W_p, b_p) = 1 / (sum_i w_pi)  sum_i w_pi sum_k -t_pik log softmax(W_p' x_i + b_p)_k  +  decay_p / 2 |W_p|^2

A problem p is a fold (w_pi = 0 for the samples that it must not see), a decay, or both. All of them share the features,
so the heads lie side by side and one matrix product serves them all. The minimum is found by L-BFGS over full passes,
each problem with a direction and a step of its own, in lockstep: a problem whose step was too long tries half of it in
the pass in which the others go on. Nothing is drawn at random, so a fit gives the same bits again.

Features are first put on their principal axes (`PrincipalAxes`). The penalty does not notice a rotation, but there the
curvature is nearly diagonal, c_pk s_d^2 + decay_p, and dividing the slope by it makes a fit take tens of passes instead
of hundreds. Where there are fewer samples than features, the axes are as few as the samples.

Shapes: N samples, n of a piece, F features, D axes (the last one constant), P problems, T tables of targets, K classes.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from selfadapt.data.input_statistics import feature_scale

_PIECE = 2**24  # numbers in the logits of a piece
_MEMORY = 8  # steps that L-BFGS remembers
_ENOUGH = 1e-4  # of the expected decrease
_FLAT = 1e-6  # variance of an axis, as a share of the largest one, below which it carries rounding errors alone
_BOUNDS = 64  # places where the samples of a problem begin or end, above which nothing is skipped


@dataclass(frozen=True)
class PrincipalAxes:
    """Features on one scale, turned to their principal axes, with a constant at the end for the bias."""

    mean_F: Tensor
    turn_FD: Tensor  # divides by the scale, turns, and scales all by one number
    variance_D: Tensor  # of each axis, without the constant

    @classmethod
    def of(cls, features_NF: Tensor) -> "PrincipalAxes":
        features_NF = features_NF.float()
        mean_F = features_NF.mean(0)
        scale_F = 1 / feature_scale(features_NF)
        count, width = features_NF.shape
        if count < width:
            centred_NF = (features_NF - mean_F) * scale_F
            variance_D, left_ND = torch.linalg.eigh(_wide(centred_NF @ centred_NF.T) / count)
            keep = variance_D > _FLAT * variance_D[-1]
            variance_D, left_ND = variance_D[keep], left_ND[:, keep]
            turn_FD = (centred_NF.T @ left_ND.float()) / (variance_D * count).sqrt().float()
        else:
            moment_FF = torch.zeros(width, width, dtype=_double(features_NF))
            for piece_nF in features_NF.split(max(1, _PIECE // width)):
                centred_nF = (piece_nF - mean_F) * scale_F
                moment_FF += centred_nF.T @ centred_nF
            variance_D, turn = torch.linalg.eigh(moment_FF / count)
            keep = variance_D > _FLAT * variance_D[-1]
            variance_D, turn_FD = variance_D[keep], turn[:, keep].float()
        whole = variance_D.sum().sqrt().clamp_min(1e-12)  # afterwards a sample's mean squared length is 1
        turn_FD = scale_F.unsqueeze(1) * turn_FD / whole.float()
        return cls(mean_F, turn_FD.flip(1).contiguous(), (variance_D / whole**2).float().flip(0))

    def first(self, count: int) -> "PrincipalAxes":
        """The axes of largest variance alone."""
        return PrincipalAxes(self.mean_F, self.turn_FD[:, :count].contiguous(), self.variance_D[:count])

    def __call__(self, features_NF: Tensor) -> Tensor:
        """The features on these axes: N×D."""
        axes_ND = torch.ones(len(features_NF), self.turn_FD.shape[1] + 1)
        size = max(1, _PIECE // self.turn_FD.shape[0])
        for start in range(0, len(features_NF), size):
            piece = slice(start, start + size)
            axes_ND[piece, :-1] = (features_NF[piece].float() - self.mean_F) @ self.turn_FD
        return axes_ND


def _double(like: Tensor) -> torch.dtype:
    return torch.float32 if like.device.type == "mps" else torch.float64


def _wide(matrix: Tensor) -> Tensor:
    return matrix.to(_double(matrix))


def pieces_of(count: int, columns: int) -> list[slice]:
    """The samples in pieces that keep a table of so many columns small."""
    size = max(1, _PIECE // columns)
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def logits(axes_ND: Tensor, heads_DPK: Tensor) -> Tensor:
    """n×P×K."""
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
    """The heads (D×P×K) at the minimum of L_p, or after so many passes, from `start_DPK` on.

    `table_P` says which table of targets a problem learns; without it there is one for all. It stops when no problem
    can expect to gain more than `tolerance` (in nats for each sample). Where the samples that a problem does not see
    stand together, they cost it nothing.
    """
    if table_P is None:
        table_P = torch.zeros(len(decay_P), dtype=torch.int64)
    loss = _Loss(axes_ND, targets_NTK, table_P, weights_NP, decay_P)
    heads_DPK = start_DPK.clone()
    value_P, slope_DPK, spread_PK = loss(heads_DPK)
    memory: list[tuple[Tensor, Tensor, Tensor]] = []
    direction_DPK = slope_DPK.neg() / loss.curvature(spread_PK)
    expected_P = _dot(slope_DPK, direction_DPK)
    step_P = torch.ones_like(value_P)
    for _ in range(passes - 1):
        going_P = -0.5 * expected_P > tolerance  # a problem stops by itself, whatever the others do
        if not bool(going_P.any()):
            break
        trial_DPK = heads_DPK + direction_DPK * step_P.view(1, -1, 1)
        trial_value_P, trial_slope_DPK, trial_spread_PK = loss(trial_DPK)
        better_P = trial_value_P <= value_P + _ENOUGH * step_P * expected_P + 1e-7 * value_P.abs()
        better_P &= going_P
        keep_1P1 = better_P.view(1, -1, 1)
        moved_DPK = torch.where(keep_1P1, trial_DPK - heads_DPK, 0.0)
        turned_DPK = torch.where(keep_1P1, trial_slope_DPK - slope_DPK, 0.0)
        heads_DPK = torch.where(keep_1P1, trial_DPK, heads_DPK)
        slope_DPK = torch.where(keep_1P1, trial_slope_DPK, slope_DPK)
        value_P = torch.where(better_P, trial_value_P, value_P)
        spread_PK = torch.where(better_P.unsqueeze(1), trial_spread_PK, spread_PK)
        curved_P = _dot(moved_DPK, turned_DPK)
        memory = [*memory[1 - _MEMORY :], (moved_DPK, turned_DPK, curved_P)]
        fresh_DPK = _direction(slope_DPK, memory, loss.curvature(spread_PK))
        direction_DPK = torch.where(keep_1P1, fresh_DPK, direction_DPK)
        step_P = torch.where(better_P, 1.0, step_P * 0.5)
        expected_P = _dot(slope_DPK, direction_DPK)
    return heads_DPK


def _dot(a_DPK: Tensor, b_DPK: Tensor) -> Tensor:
    return (a_DPK * b_DPK).sum((0, 2))


def _direction(slope_DPK: Tensor, memory: list[tuple[Tensor, Tensor, Tensor]], curvature_DPK: Tensor) -> Tensor:
    """The two loops of L-BFGS, each problem skipping the passes in which it did not move."""
    direction_DPK = slope_DPK.neg()
    shares: list[Tensor] = []
    for moved_DPK, turned_DPK, curved_P in reversed(memory):
        share_P = torch.where(curved_P > 0, _dot(moved_DPK, direction_DPK) / curved_P, 0.0)
        direction_DPK -= share_P.view(1, -1, 1) * turned_DPK
        shares.append(share_P)
    scale_P = torch.ones_like(slope_DPK[0, :, 0])
    for _, turned_DPK, curved_P in memory:  # the last one that moved sets the length
        size_P = _dot(turned_DPK, turned_DPK / curvature_DPK)
        scale_P = torch.where((curved_P > 0) & (size_P > 0), curved_P / size_P, scale_P)
    direction_DPK *= scale_P.view(1, -1, 1) / curvature_DPK
    for (moved_DPK, turned_DPK, curved_P), share_P in zip(memory, reversed(shares), strict=True):
        other_P = torch.where(curved_P > 0, _dot(turned_DPK, direction_DPK) / curved_P, 0.0)
        direction_DPK += (share_P - other_P).view(1, -1, 1) * moved_DPK
    return direction_DPK


class _Loss:
    """L_p and its slope, over all samples."""

    def __init__(
        self, axes_ND: Tensor, targets_NTK: Tensor, table_P: Tensor, weights_NP: Tensor, decay_P: Tensor
    ) -> None:
        self.axes_ND, self.targets_NTK, self.table_P, self.decay_P = axes_ND, targets_NTK, table_P, decay_P
        self.weights_NP = weights_NP / weights_NP.sum(0).clamp_min(1e-12)
        self.pieces = _pieces(weights_NP, targets_NTK.shape[2])
        self.penalised_D11 = torch.ones(axes_ND.shape[1], 1, 1)
        self.penalised_D11[-1] = 0
        square_D = torch.stack([piece_nD.square().sum(0) for piece_nD in axes_ND.split(65_536)]).sum(0)
        self.square_D11 = (square_D / len(axes_ND)).view(-1, 1, 1)

    def __call__(self, heads_DPK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """L, its slope, and the mean of p (1 - p) for each class."""
        value_P = torch.zeros(len(self.decay_P))
        slope_DPK = torch.zeros_like(heads_DPK)
        spread_PK = torch.zeros_like(heads_DPK[0])
        for piece, seen_p in self.pieces:
            axes_nD, weights_np1 = self.axes_ND[piece], self.weights_NP[piece][:, seen_p].unsqueeze(2)
            targets_ntK = self.targets_NTK[piece].float()
            targets_npK = targets_ntK if targets_ntK.shape[1] == 1 else targets_ntK[:, self.table_P[seen_p]]
            log_npK = logits(axes_nD, heads_DPK[:, seen_p]).log_softmax(2)
            value_P[seen_p] -= ((log_npK * targets_npK).sum(2) * weights_np1.squeeze(2)).sum(0)
            p_npK = log_npK.exp_()
            spread_PK[seen_p] += (weights_np1 * p_npK * (1 - p_npK)).sum(0)
            error_npK = p_npK.sub_(targets_npK).mul_(weights_np1)
            slope_DC = axes_nD.T @ error_npK.flatten(1)
            slope_DPK[:, seen_p] += slope_DC.view(len(slope_DC), *error_npK.shape[1:])
        penalty_DPK = self.penalised_D11 * self.decay_P.view(1, -1, 1) * heads_DPK
        value_P += 0.5 * _dot(penalty_DPK, heads_DPK)
        return value_P, slope_DPK + penalty_DPK, spread_PK

    def curvature(self, spread_PK: Tensor) -> Tensor:
        """About the diagonal of the second derivative.

        It must follow the predictions. A head that is sure of its samples has a curvature a hundred times smaller than
        one that begins, and by the first one it would seem to have arrived: where samples are fewer than features,
        after one step, at a head that fits them by their noise.
        """
        decay_1P1 = self.penalised_D11 * self.decay_P.view(1, -1, 1)
        return self.square_D11 * spread_PK.clamp_min(1e-6) + decay_1P1


def _pieces(weights_NP: Tensor, classes: int) -> list[tuple[slice, Tensor]]:
    """The samples in pieces, and for each of them the problems that see it."""
    seen_NP = weights_NP > 0
    changes = (seen_NP[1:] != seen_NP[:-1]).any(1).nonzero().flatten().add(1).tolist()
    bounds = [0, *(changes if len(changes) <= _BOUNDS else []), len(seen_NP)]
    pieces = []
    for start, end in pairwise(bounds):
        for piece in pieces_of(end - start, weights_NP.shape[1] * classes):
            piece = slice(start + piece.start, start + piece.stop)
            pieces.append((piece, seen_NP[piece].any(0).nonzero().flatten()))
    return [(piece, seen_p) for piece, seen_p in pieces if len(seen_p)]
