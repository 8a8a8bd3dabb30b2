"""Linear discriminants by folds, in closed form: class means and one shrunk covariance, from sums that subtract.

    n_k = sum_i t_ik      m_k = sum_i t_ik x_i / n_k      S = (X'X - sum_k n_k m_k m_k') / sum_k n_k
    S_a = (1 - a) S + a tr(S) / D      score_k(x) = x' S_a^-1 m_k - m_k' S_a^-1 m_k / 2 + log(n_k / sum n)

Targets t may be soft: then S is the covariance within classes to which samples belong in part. The sums X'X and X'T of
a fold are taken once; what the other folds have is the whole less the fold. X'X is decomposed once for each fold, and
the rest of S_a has as many dimensions as there are classes, so any targets and any shrinkage a cost a system of K
equations (Woodbury's identity). Scores are too far apart where axes are many, so a temperature divides them; a and the
temperature are chosen by the likelihood of held-out targets.

Shapes: N samples, n of one fold, D axes, K classes, F folds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

SHRINKAGES = (0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9)
_TEMPERATURES = tuple(0.05 * 30 ** (step / 23) for step in range(24))  # that multiply the scores: 0.05 to 1.5
_ABSENT = -1e4  # the score of a class that the other folds have no sample of
_FEWEST = 1e-3  # samples of a class, in sums of soft targets
_ROWS = 8192
_COMPARED = 5000  # samples by which shrinkage and temperature are chosen


@dataclass(frozen=True)
class FoldSums:
    """The axes and folds of the samples, and for each fold X'X of all others, decomposed."""

    axes_ND: Tensor
    fold_N: Tensor
    turn_FDD: Tensor
    square_FD: Tensor  # eigenvalues of X'X

    @classmethod
    def of(cls, axes_ND: Tensor, fold_N: Tensor) -> "FoldSums":
        folds, width = int(fold_N.max()) + 1, axes_ND.shape[1]
        gram_FDD = torch.zeros(folds, width, width)
        for fold in range(folds):
            for axes_nD in axes_ND[fold_N == fold].split(_ROWS):
                gram_FDD[fold] += axes_nD.T @ axes_nD
        square_FD, turn_FDD = torch.linalg.eigh(gram_FDD.sum(0) - gram_FDD)
        return cls(axes_ND, fold_N, turn_FDD.double(), square_FD.double().clamp_min(0))

    def held_out_scores(self, targets_NTK: Tensor, shrinkages: Sequence[float] = SHRINKAGES) -> dict[float, Tensor]:
        """For each shrinkage the scores (N×K) of every sample by the discriminant of the other folds.

        `targets_NTK` holds one table for all folds (T = 1), or one for each fold, empty at the samples of that fold.
        """
        scores = {a: torch.empty(len(self.axes_ND), targets_NTK.shape[2]) for a in shrinkages}
        for fold, (counts_K, sum_KD) in enumerate(self._sums_of_others(targets_NTK)):
            own = Discriminant.of(self.turn_FDD[fold], self.square_FD[fold], sum_KD, counts_K)
            rows = self.fold_N == fold
            turned_nD = self.axes_ND[rows] @ own.turn_DD.float()
            for a in shrinkages:
                scores[a][rows] = own.scores(turned_nD, a)
        return scores

    def _sums_of_others(self, targets_NTK: Tensor) -> list[tuple[Tensor, Tensor]]:
        """For each fold, n and T'X of all others."""
        folds = range(len(self.turn_FDD))
        if targets_NTK.shape[1] > 1:
            return [self._sums(targets_NTK[:, fold], self.axes_ND) for fold in folds]
        own = [self._sums(targets_NTK[rows, 0], self.axes_ND[rows]) for rows in (self.fold_N == f for f in folds)]
        counts_FK, sum_FKD = (torch.stack(part) for part in zip(*own, strict=True))
        return list(zip(counts_FK.sum(0) - counts_FK, sum_FKD.sum(0) - sum_FKD, strict=True))

    @staticmethod
    def _sums(targets_nK: Tensor, axes_nD: Tensor) -> tuple[Tensor, Tensor]:
        return targets_nK.double().sum(0), (targets_nK.float().T @ axes_nD).double()


@dataclass(frozen=True)
class Discriminant:
    """Class means in the eigenbasis of X'X."""

    turn_DD: Tensor
    variance_D: Tensor  # mean squares along the eigenbasis
    means_KD: Tensor
    share_K: Tensor

    @classmethod
    def of(cls, turn_DD: Tensor, square_D: Tensor, sum_KD: Tensor, counts_K: Tensor) -> "Discriminant":
        total = counts_K.sum().clamp_min(_FEWEST)
        means_KD = sum_KD / counts_K.clamp_min(_FEWEST).unsqueeze(1)
        return cls(turn_DD, square_D / total, means_KD @ turn_DD, counts_K / total)

    def scores(self, turned_nD: Tensor, shrinkage: float) -> Tensor:
        """Of samples in the eigenbasis."""
        slopes_KD = self.slopes(shrinkage)
        log_share_K = torch.where(self.share_K > 0, self.share_K.clamp_min(1e-12).log(), _ABSENT)
        bias_K = log_share_K - 0.5 * (slopes_KD * self.means_KD).sum(1)
        return turned_nD @ slopes_KD.T.float() + bias_K.float()

    def slopes(self, shrinkage: float) -> Tensor:
        """S_a^-1 m of each class (K×D)."""
        between_KD = self.share_K.clamp_min(0).sqrt().unsqueeze(1) * self.means_KD
        within = (self.variance_D.sum() - between_KD.square().sum()).clamp_min(1e-12) / len(self.variance_D)
        whole_D = (1 - shrinkage) * self.variance_D + shrinkage * within
        scaled_KD = between_KD / whole_D
        rest_KK = torch.eye(len(between_KD), dtype=between_KD.dtype) / (1 - shrinkage) - scaled_KD @ between_KD.T
        weights_KK = torch.linalg.solve(rest_KK, scaled_KD @ self.means_KD.T)
        slopes_KD: Tensor = self.means_KD / whole_D + weights_KK.T @ scaled_KD
        return slopes_KD


@dataclass(frozen=True)
class HeldOut:
    """Log-probabilities of each sample by the discriminant of the other folds, and their mean log-likelihood."""

    log_NK: Tensor
    likelihood: float
    shrinkage: float


def held_out_discriminant(sums: FoldSums, targets_NTK: Tensor) -> HeldOut:
    """With the shrinkage and temperature under which held-out targets are likeliest."""
    scores = sums.held_out_scores(targets_NTK)
    others = max(1, targets_NTK.shape[1] - 1)
    every = max(1, len(sums.axes_ND) // _COMPARED)
    expected_nK = targets_NTK[::every].float().sum(1) / others
    found, place = [], len(_TEMPERATURES) // 2
    for shrinkage, scores_NK in scores.items():
        likelihood, place = _best_temperature(scores_NK[::every], expected_nK, place)
        found.append((likelihood, shrinkage, _TEMPERATURES[place]))
    likelihood, shrinkage, temperature = max(found)
    return HeldOut((scores[shrinkage] * temperature).log_softmax(1), likelihood, shrinkage)


def _best_temperature(scores_nK: Tensor, expected_nK: Tensor, place: int) -> tuple[float, int]:
    """The largest likelihood and where it is, uphill from `place`: it is concave in the temperature."""

    @cache
    def likelihood(place: int) -> float:
        if not 0 <= place < len(_TEMPERATURES):
            return -math.inf
        return float((expected_nK * (scores_nK * _TEMPERATURES[place]).log_softmax(1)).sum(1).mean())

    while (better := max((place, place - 1, place + 1), key=likelihood)) != place:
        place = better
    return likelihood(place), place
