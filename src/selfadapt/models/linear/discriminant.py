"""Linear discriminants cross-fitted over folds, in closed form: class means and one shrunk covariance.

    n_k = sum_i t_ik      m_k = sum_i t_ik x_i / n_k      S = (X'X - sum_k n_k m_k m_k') / sum_k n_k
    S_a = (1 - a) S + a tr(S) / D      score_k(x) = x' S_a^-1 m_k - m_k' S_a^-1 m_k / 2 + log(n_k / sum n)

Targets t may be soft; S is then the within-class covariance with fractional membership. The sums X'X and X'T of each
fold are computed once, and the sums of the other folds are the total minus the fold. X'X is decomposed once per fold.
The remaining term of S_a has rank K, so each choice of targets and shrinkage a costs a system of K equations (Woodbury
identity). With many axes the scores are overconfident, so they are multiplied by a temperature. Shrinkage and
temperature are selected by the likelihood of held-out targets.

Shapes: N samples, n of one fold, D axes, K classes, F folds, A shrinkages.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

SHRINKAGES = (0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9)
TEMPERATURES = tuple(0.05 * 30 ** (step / 23) for step in range(24))  # factors of the scores, 0.05 to 1.5
_ABSENT_SCORE = -1e4  # for a class without samples in the other folds
_LEAST_COUNT = 1e-3  # samples of a class, as a sum of soft targets
_ROWS = 8192
_COMPARED = 5000  # number of samples used to select shrinkage and temperature


@dataclass(frozen=True)
class FoldSums:
    """The axes and folds of the samples, and for each fold the eigendecomposition of X'X over all other folds."""

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
        """For each shrinkage, the scores (N×K) of every sample under the discriminant of the other folds.

        `targets_NTK` holds one table for all folds (T = 1), or one per fold that is 0 for the samples of that fold.
        """
        scores_ANK = torch.empty(len(shrinkages), len(self.axes_ND), targets_NTK.shape[2])
        for fold, (counts_K, sum_KD) in enumerate(self._sums_of_others(targets_NTK)):
            discriminant = Discriminant.of(self.turn_FDD[fold], self.square_FD[fold], sum_KD, counts_K)
            rows = self.fold_N == fold
            scores_ANK[:, rows] = discriminant.scores(self.axes_ND[rows], shrinkages)
        return dict(zip(shrinkages, scores_ANK, strict=True))

    def _sums_of_others(self, targets_NTK: Tensor) -> list[tuple[Tensor, Tensor]]:
        """For each fold, n and T'X over all other folds."""
        folds = range(len(self.turn_FDD))
        if targets_NTK.shape[1] > 1:
            return [self._sums(targets_NTK[:, fold], self.axes_ND) for fold in folds]
        sums = [self._sums(targets_NTK[rows, 0], self.axes_ND[rows]) for rows in (self.fold_N == f for f in folds)]
        counts_FK, sum_FKD = (torch.stack(part) for part in zip(*sums, strict=True))
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
        total = counts_K.sum().clamp_min(_LEAST_COUNT)
        means_KD = sum_KD / counts_K.clamp_min(_LEAST_COUNT).unsqueeze(1)
        return cls(turn_DD, square_D / total, means_KD @ turn_DD, counts_K / total)

    def scores(self, axes_nD: Tensor, shrinkages: Sequence[float]) -> Tensor:
        """The scores of samples for each shrinkage (A×n×K)."""
        slopes_AKD = self.slopes(torch.tensor(shrinkages, dtype=self.means_KD.dtype))
        log_share_K = torch.where(self.share_K > 0, self.share_K.clamp_min(1e-12).log(), _ABSENT_SCORE)
        bias_AK = log_share_K - 0.5 * (slopes_AKD * self.means_KD).sum(-1)
        # in the cheaper order: with few classes, turning the slopes costs less than turning the samples
        scores_nC = torch.linalg.multi_dot((axes_nD, self.turn_DD.float(), slopes_AKD.flatten(0, 1).T.float()))
        scores_AnK: Tensor = scores_nC.unflatten(1, bias_AK.shape).transpose(0, 1) + bias_AK.unsqueeze(1).float()
        return scores_AnK

    def slopes(self, shrinkage: float | Tensor) -> Tensor:
        """S_a^-1 m_k of each class (K×D); A×K×D for A shrinkages."""
        a_A11 = torch.as_tensor(shrinkage, dtype=self.means_KD.dtype)[..., None, None]
        between_KD = self.share_K.clamp_min(0).sqrt().unsqueeze(1) * self.means_KD
        within = (self.variance_D.sum() - between_KD.square().sum()).clamp_min(1e-12) / len(self.variance_D)
        whole_A1D = (1 - a_A11) * self.variance_D + a_A11 * within
        scaled_AKD = between_KD / whole_A1D
        rest_AKK = torch.eye(len(between_KD), dtype=between_KD.dtype) / (1 - a_A11) - scaled_AKD @ between_KD.T
        weights_AKK = torch.linalg.solve(rest_AKK, scaled_AKD @ self.means_KD.T)
        slopes_AKD: Tensor = self.means_KD / whole_A1D + weights_AKK.mT @ scaled_AKD
        return slopes_AKD


@dataclass(frozen=True)
class HeldOut:
    """Out-of-sample log-probabilities of each sample, and the mean log-likelihood of the targets."""

    log_NK: Tensor
    likelihood: float
    shrinkage: float


def held_out_discriminant(sums: FoldSums, targets_NTK: Tensor) -> HeldOut:
    """Predict each fold from the others, at the shrinkage and temperature that maximise the held-out likelihood."""
    scores = sums.held_out_scores(targets_NTK)
    others = max(1, targets_NTK.shape[1] - 1)
    every = max(1, len(sums.axes_ND) // _COMPARED)
    expected_nK = targets_NTK[::every].float().sum(1) / others
    candidates, index = [], len(TEMPERATURES) // 2
    for shrinkage, scores_NK in scores.items():
        likelihood, index = best_temperature(scores_NK[::every], expected_nK, index)
        candidates.append((likelihood, shrinkage, TEMPERATURES[index]))
    likelihood, shrinkage, temperature = max(candidates)
    return HeldOut((scores[shrinkage] * temperature).log_softmax(1), likelihood, shrinkage)


def best_temperature(scores_nK: Tensor, expected_nK: Tensor, index: int) -> tuple[float, int]:
    """The maximum likelihood and its index, by hill climbing from `index`: it is concave in the temperature."""
    scores_Kn, expected_Kn = scores_nK.T.contiguous(), expected_nK.T.contiguous()  # few classes are slow in rows

    @cache
    def likelihood(index: int) -> float:
        if not 0 <= index < len(TEMPERATURES):
            return -math.inf
        return float((expected_Kn * (scores_Kn * TEMPERATURES[index]).log_softmax(0)).sum(0).mean())

    while (better := max((index, index - 1, index + 1), key=likelihood)) != index:
        index = better
    return likelihood(index), index
