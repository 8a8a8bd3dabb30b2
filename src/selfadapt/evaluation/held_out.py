"""Verdicts on labels by predictions that never saw them (Section 4.4 of the paper asks the same of the targets).

A label is judged by the posterior of its true class, given the prediction and how labels go wrong
(objectives/transition.py). Those of the greatest doubt are suspect, as many as seem to be wrong (label_quality.py), if
the prediction prefers another class. Classes of fewer than five samples are not judged. Of copies of one picture with
different labels, those are suspect that are not what all copies together say, and they stand at the top of the list.

Shapes: N samples, K classes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from selfadapt.evaluation.label_quality import ListQuality, expected_quality
from selfadapt.objectives.cross_fitting import LEAST_TO_JUDGE
from selfadapt.objectives.transition import doubts, posterior

_MOST_WRONG = 0.9  # of the labels of a class


@dataclass(frozen=True)
class HeldOutVerdicts:
    """For each label: how doubtful it is, what it should be, and what the list of them is worth."""

    doubt_N: Tensor  # log odds that the label is wrong
    suggested_N: Tensor
    confidence_N: Tensor
    weight_N: Tensor
    suspect_N: Tensor
    few_K: Tensor  # classes that are too small to be judged
    first_N: Tensor  # those that go before all others
    quality: ListQuality

    @classmethod
    def of(cls, predicted_NK: Tensor, labels_N: Tensor, matrix_KK: Tensor, seed: int) -> "HeldOutVerdicts":
        doubt_N, rival_N = doubts(predicted_NK, labels_N, matrix_KK)
        rows_NK = posterior(predicted_NK, labels_N, matrix_KK)
        few_K = torch.bincount(labels_N, minlength=len(matrix_KK)) < LEAST_TO_JUDGE
        judged_N = ~few_K[labels_N]
        quality = expected_quality(predicted_NK[judged_N], labels_N[judged_N], matrix_KK, seed=seed)
        listed = torch.where(judged_N, doubt_N, -torch.inf).argsort(descending=True, stable=True)[: quality.cut]
        suspect_N = torch.zeros_like(judged_N).index_fill(0, listed, True) & (predicted_NK.argmax(1) != labels_N)
        suggested_N = torch.where(suspect_N, rival_N, labels_N)
        confidence_N = _confidence(predicted_NK, labels_N, suggested_N, _as_often(matrix_KK, rows_NK.mean(0), quality))
        rate = min(max(quality.noise_rate.value, 1e-6), 1 - 1e-6)  # nothing is known of a label that cannot be judged
        doubt_N = torch.where(judged_N, doubt_N, math.log(rate / (1 - rate)))
        weight_N = rows_NK.amax(1)
        first_N = torch.zeros_like(suspect_N)
        return cls(doubt_N, suggested_N, confidence_N, weight_N, suspect_N, few_K, first_N, quality)

    def with_duplicates(
        self, predicted_NK: Tensor, labels_N: Tensor, matrix_KK: Tensor, duplicates: Sequence[Sequence[int]]
    ) -> "HeldOutVerdicts":
        """Copies with different labels go first, and those are suspect that are not what all copies together say."""
        suggested_N, suspect_N, first_N = self.suggested_N.clone(), self.suspect_N.clone(), self.first_N.clone()
        confidence_N = self.confidence_N.clone()
        for group in duplicates:
            members = torch.as_tensor(list(group))
            if len(labels_N[members].unique()) < 2:
                continue
            log_K = predicted_NK[members].clamp_min(1e-30).log().mean(0)
            log_K = log_K + matrix_KK.T[labels_N[members]].clamp_min(1e-30).log().sum(0)
            together = int(log_K.argmax())
            first_N[members] = True
            suspect_N[members] = labels_N[members] != together
            suggested_N[members] = together
            confidence_N[members] = log_K.softmax(0)[together]
        return HeldOutVerdicts(
            self.doubt_N, suggested_N, confidence_N, self.weight_N, suspect_N, self.few_K, first_N, self.quality
        )

    @property
    def order_N(self) -> Tensor:
        """The samples from most to least suspicious."""
        by_doubt = self.doubt_N.argsort(descending=True, stable=True)
        by_first = (~self.first_N[by_doubt]).long().argsort(stable=True)
        return by_doubt[by_first]


def _as_often(matrix_KK: Tensor, share_K: Tensor, quality: ListQuality) -> Tensor:
    """V with errors as frequent as the list says. V itself is careful: it is shrunk, and predictions are unsure."""
    wrong_KK = matrix_KK.clone().fill_diagonal_(0)
    rate = float((share_K * wrong_KK.sum(1)).sum())
    wrong_KK *= max(1.0, quality.noise_rate.value / max(rate, 1e-12))
    wrong_KK *= (_MOST_WRONG / wrong_KK.sum(1, keepdim=True).clamp_min(1e-12)).clamp_max(1.0)
    return wrong_KK + torch.diag(1 - wrong_KK.sum(1))


def _confidence(predicted_NK: Tensor, labels_N: Tensor, suggested_N: Tensor, matrix_KK: Tensor) -> Tensor:
    """The odds of the suggested class against the strongest other one."""
    rows_NK = posterior(predicted_NK, labels_N, matrix_KK)
    own_N = rows_NK.gather(1, suggested_N.unsqueeze(1)).squeeze(1)
    other_N = rows_NK.scatter(1, suggested_N.unsqueeze(1), 0.0).amax(1)
    return own_N / (own_N + other_N).clamp_min(1e-30)
