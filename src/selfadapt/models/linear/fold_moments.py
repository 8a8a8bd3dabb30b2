"""Linear discriminants of many samples: sums over each fold in one pass, and heads from the sums of the other folds.

    G = X'X    m_k = sum of x_i over class k / n_k    S = (G - sum_k n_k m_k m_k') / sum_k n_k
    S_a = (1 - a) S + a tr(S) / D                     score_k(x) = x' S_a^-1 m_k - m_k' S_a^-1 m_k / 2 + log(n_k / n)

It is the discriminant of discriminant.py without a table of the samples: the sums of the other folds are the total
minus the fold, and the eigendecomposition of S gives the heads for every shrinkage a. Products of a block are in
float32, sums over blocks in float64.

Shapes: n samples of a block, F folds, D axes, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from selfadapt.core import distributed

_LEAST_COUNT = 1e-3  # samples of a class, as a sum of soft targets
_ABSENT_SCORE = -1e4  # for a class without samples in the other folds


@dataclass(frozen=True)
class FoldMoments:
    """The number, the sum and the products of the samples of each fold, by class."""

    counts_FK: Tensor
    sums_FKD: Tensor
    gram_FDD: Tensor

    @classmethod
    def zero(cls, folds: int, classes: int, width: int) -> "FoldMoments":
        shapes = ((folds, classes), (folds, classes, width), (folds, width, width))
        return cls(*(torch.zeros(shape, dtype=torch.float64) for shape in shapes))

    def add(self, axes_nD: Tensor, labels: Tensor, fold_n: Tensor) -> None:
        """Add a block with its labels (n) or soft targets (n×K)."""
        for fold, (counts_K, sums_KD, gram_DD) in enumerate(zip(*self._tables(), strict=True)):
            rows = (fold_n == fold).nonzero().flatten()
            own_nD, targets = axes_nD[rows], labels[rows]
            gram_DD += own_nD.T @ own_nD
            if targets.ndim > 1:
                counts_K += targets.sum(0)
                sums_KD += targets.T @ own_nD
            else:
                counts_K.index_add_(0, targets, torch.ones(len(rows)).double())
                sums_KD.index_add_(0, targets, own_nD.double())

    def _tables(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.counts_FK, self.sums_FKD, self.gram_FDD

    def all_reduce(self) -> None:
        """Add the sums of all processes."""
        for values in self._tables():
            distributed.all_reduce_sum(values)

    def discriminant_without(self, folds: Sequence[int]) -> "ShrunkDiscriminant":
        counts_K, sums_KD, gram_DD = (values.sum(0) - values[list(folds)].sum(0) for values in self._tables())
        return ShrunkDiscriminant.of(counts_K, sums_KD, gram_DD)


@dataclass(frozen=True)
class ShrunkDiscriminant:
    """Class means in the eigenbasis of S."""

    turn_DD: Tensor
    variance_D: Tensor
    means_KD: Tensor
    log_share_K: Tensor

    @classmethod
    def of(cls, counts_K: Tensor, sums_KD: Tensor, gram_DD: Tensor) -> "ShrunkDiscriminant":
        total = counts_K.sum().clamp_min(_LEAST_COUNT)
        means_KD = sums_KD / counts_K.clamp_min(_LEAST_COUNT).unsqueeze(1)
        within_DD = (gram_DD - means_KD.T @ sums_KD) / total
        variance_D, turn_DD = torch.linalg.eigh(within_DD)
        share_K = counts_K / total
        log_share_K = torch.where(share_K > 0, share_K.clamp_min(1e-12).log(), _ABSENT_SCORE)
        return cls(turn_DD, variance_D.clamp_min(0), means_KD @ turn_DD, log_share_K)

    def shrunk_variance(self, shrinkage: float) -> Tensor:
        return (1 - shrinkage) * self.variance_D + shrinkage * self.variance_D.mean().clamp_min(1e-12)

    def head(self, shrinkage: float) -> Tensor:
        """Weights and, in the last row, the bias of each class (D+1×K)."""
        slopes_KD, bias_K = self._slopes(shrinkage)
        return torch.cat((self.turn_DD @ slopes_KD.T, bias_K.unsqueeze(0))).float()

    def scores_of_turned(self, turned_nD: Tensor, shrinkage: float) -> Tensor:
        """The scores (n×K) of samples in the eigenbasis."""
        slopes_KD, bias_K = self._slopes(shrinkage)
        return torch.addmm(bias_K.float(), turned_nD, slopes_KD.T.float())

    def _slopes(self, shrinkage: float) -> tuple[Tensor, Tensor]:
        slopes_KD = self.means_KD / self.shrunk_variance(shrinkage)
        return slopes_KD, self.log_share_K - 0.5 * (slopes_KD * self.means_KD).sum(1)

    def whitening(self, shrinkage: float) -> Tensor:
        """The map to axes on which S_a is the identity (D×D)."""
        return (self.turn_DD / self.shrunk_variance(shrinkage).sqrt()).float()


def scores(axes_nD: Tensor, head_DK: Tensor) -> Tensor:
    """The scores (n×K) of a head with its bias in the last row."""
    return torch.addmm(head_DK[-1], axes_nD, head_DK[:-1])


@dataclass(frozen=True)
class Standardised:
    """Features divided by their standard deviations: axes without a kernel, with the methods of `KernelAxes`."""

    mean_F: Tensor
    scale_F: Tensor

    def values(self, features_nF: Tensor) -> Tensor:
        return (features_nF - self.mean_F) / self.scale_F

    def scores(self, values_nF: Tensor, head_DK: Tensor) -> Tensor:
        return scores(values_nF, head_DK)

    __call__ = values
