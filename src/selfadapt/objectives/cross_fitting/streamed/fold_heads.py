"""One predictor of streamed cross-fitting: a linear discriminant for each fold, on axes of the features.

Shapes: n samples of a block, F features, f folds, D axes, K classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from selfadapt.models.linear.discriminant import SHRINKAGES, TEMPERATURES, best_temperature
from selfadapt.models.linear.fold_moments import FoldMoments, ShrunkDiscriminant, scores


@dataclass
class FoldHeads:
    """The heads of all folds on the axes of one view of the features."""

    axes: Callable[[Tensor], Tensor]  # n×F to n×D
    moments: FoldMoments
    shrinkage: float = 0.0
    temperature: float = 1.0
    heads: list[Tensor] = field(default_factory=list)  # D+1×K, for each fold
    whitenings: list[Tensor] = field(default_factory=list)

    def fit(
        self, discriminants: Sequence[ShrunkDiscriminant], sample_nF: Tensor, fold_n: Tensor, targets_nK: Tensor
    ) -> None:
        """Select shrinkage and temperature by the likelihood of the targets of a sample; keep the heads."""
        axes_nD, index = self.axes(sample_nF), len(TEMPERATURES) // 2
        turned = [axes_nD[fold_n == fold] @ own.turn_DD.float() for fold, own in enumerate(discriminants)]
        candidates = []
        for shrinkage in SHRINKAGES:
            scores_nK = torch.empty_like(targets_nK)
            for fold, own in enumerate(discriminants):
                scores_nK[fold_n == fold] = own.scores_of_turned(turned[fold], shrinkage)
            likelihood, index = best_temperature(scores_nK, targets_nK, index)
            candidates.append((likelihood, shrinkage, TEMPERATURES[index]))
        _, self.shrinkage, self.temperature = max(candidates)
        self.heads = [own.head(self.shrinkage) for own in discriminants]
        self.whitenings = [own.whitening(self.shrinkage) for own in discriminants]

    def predict(self, axes_nD: Tensor, fold_n: Tensor) -> Tensor:
        """Out-of-sample class probabilities (n×K)."""
        predicted_nK = axes_nD.new_empty(len(axes_nD), self.heads[0].shape[1])
        for fold in fold_n.unique().tolist():
            rows = (fold_n == fold).nonzero().flatten()
            predicted_nK[rows] = self.probabilities(axes_nD[rows], self.heads[fold])
        return predicted_nK

    def probabilities(self, axes_nD: Tensor, head_DK: Tensor) -> Tensor:
        return scores(axes_nD, head_DK).mul_(self.temperature).softmax(1)

    def distance(self, axes_nD: Tensor, fold_n: Tensor, log_share_fK: Tensor) -> Tensor:
        """The squared Mahalanobis distance of each sample to the nearest class mean of the other folds."""
        distance_n = axes_nD.new_empty(len(axes_nD))
        for fold in fold_n.unique().tolist():
            rows = (fold_n == fold).nonzero().flatten()
            own_nD = axes_nD[rows]
            nearest_n = (scores(own_nD, self.heads[fold]) - log_share_fK[fold]).amax(1)
            distance_n[rows] = (own_nD @ self.whitenings[fold]).square().sum(1) - 2 * nearest_n
        return distance_n.clamp_min(0)
