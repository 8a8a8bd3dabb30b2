"""One predictor of streamed cross-fitting: a linear discriminant for each fold, on axes of the features.

Shapes: n samples of a block, F features, M columns, f folds, D axes, K classes.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from selfadapt.models.linear.discriminant import SHRINKAGES, TEMPERATURES, best_temperature
from selfadapt.models.linear.fold_moments import FoldMoments, Standardised, scores
from selfadapt.models.linear.kernel_axes import KernelAxes


@dataclass
class FoldHeads:
    """The heads of all folds on the axes of one view of the features."""

    axes: KernelAxes | Standardised
    moments: FoldMoments
    temperature: float = 1.0
    heads: list[Tensor] = field(default_factory=list)  # D+1×K, for each fold
    whitenings: list[Tensor] = field(default_factory=list)
    log_shares: list[Tensor] = field(default_factory=list)  # K

    def add(self, features_nF: Tensor, targets: Tensor, fold_n: Tensor) -> None:
        """Add a block, with labels or soft targets, to the sums of its folds."""
        self.moments.add(self.axes(features_nF), targets, fold_n)

    def fit(self, sample_nF: Tensor, fold_n: Tensor, targets_nK: Tensor) -> None:
        """Fit each fold's head to the sums of the other folds, in all processes.

        Shrinkage and temperature are selected by the likelihood of the targets of a sample.
        """
        self.moments.all_reduce()
        discriminants = [self.moments.discriminant_without([fold]) for fold in range(len(self.moments.counts_FK))]
        axes_nD, index = self.axes(sample_nF), len(TEMPERATURES) // 2
        turned = [axes_nD[fold_n == fold] @ own.turn_DD.float() for fold, own in enumerate(discriminants)]
        candidates = []
        for shrinkage in SHRINKAGES:
            scores_nK = torch.empty_like(targets_nK)
            for fold, own in enumerate(discriminants):
                scores_nK[fold_n == fold] = own.scores_of_turned(turned[fold], shrinkage)
            likelihood, index = best_temperature(scores_nK, targets_nK, index)
            candidates.append((likelihood, shrinkage, TEMPERATURES[index]))
        _, shrinkage, self.temperature = max(candidates)
        self.heads = [own.head(shrinkage) for own in discriminants]
        self.whitenings = [own.whitening(shrinkage) for own in discriminants]
        self.log_shares = [own.log_share_K.float() for own in discriminants]

    def predict(self, features_nF: Tensor, fold_n: Tensor) -> Tensor:
        """Out-of-sample class probabilities (n×K)."""
        values_nM = self.axes.values(features_nF)
        predicted_nK = values_nM.new_empty(len(values_nM), self.heads[0].shape[1])
        for fold in fold_n.unique().tolist():
            rows = (fold_n == fold).nonzero().flatten()
            scores_nK = self.axes.scores(values_nM[rows], self.heads[fold])
            predicted_nK[rows] = scores_nK.mul_(self.temperature).softmax(1)
        return predicted_nK

    def distance(self, features_nF: Tensor, fold_n: Tensor) -> Tensor:
        """The squared Mahalanobis distance of each sample to the nearest class mean of the other folds."""
        axes_nD = self.axes(features_nF)
        distance_n = axes_nD.new_empty(len(axes_nD))
        for fold in fold_n.unique().tolist():
            rows = (fold_n == fold).nonzero().flatten()
            own_nD = axes_nD[rows]
            nearest_n = (scores(own_nD, self.heads[fold]) - self.log_shares[fold]).amax(1)
            distance_n[rows] = (own_nD @ self.whitenings[fold]).square().sum(1) - 2 * nearest_n
        return distance_n.clamp_min(0)
