"""The evidence that the labels of its duplicates give about a sample.

Duplicates show the same content, so they have one true class k. Their predictions are nearly identical and count once.
Their labels were assigned separately, so each one counts:

    prior_ik ∝ (prod over the m members j of q_jk)^(1/m)  prod over members j other than i of V[k, y_j]^g

Combined with its label, a sample has the posterior of its group. A member that disagrees with the others moves up the
list, and members that agree move down. g is the share of conflicts that label errors explain. If duplicates disagree
more often than labels are wrong, many of them are ambiguous, and their labels are weaker evidence about each other.

Shapes: N samples, K classes, m members of a group.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

_TINY = 1e-30


def with_duplicates(
    predicted_NK: Tensor, labels_N: Tensor, matrix_KK: Tensor, duplicates: Sequence[Sequence[int]]
) -> Tensor:
    """The predictions, for duplicates combined with the labels of the other members of the group."""
    prior_NK, share = predicted_NK.clone(), explained_conflicts(labels_N, matrix_KK, duplicates)
    for group in duplicates:
        members_m = torch.as_tensor(list(group))
        label_mK = share * matrix_KK.T[labels_N[members_m]].clamp_min(_TINY).log()
        common_K = predicted_NK[members_m].clamp_min(_TINY).log().mean(0) + label_mK.sum(0)
        prior_NK[members_m] = (common_K - label_mK).softmax(1)
    return prior_NK


def explained_conflicts(labels_N: Tensor, matrix_KK: Tensor, duplicates: Sequence[Sequence[int]]) -> float:
    """g: the expected number of groups with different labels under V over the observed number, at most 1.

    Both numbers are incremented by one, so that a single conflict has little effect.
    """
    right = float(matrix_KK.diagonal()[labels_N].mean())
    expected = sum(1 - right ** len(group) for group in duplicates)
    observed = sum(len(labels_N[list(group)].unique()) > 1 for group in duplicates)
    return min(1.0, (expected + 1) / (observed + 1))


def group_of_each(duplicates: Sequence[Sequence[int]], count: int) -> Tensor:
    """The index of each sample's group of duplicates, or -1 for a sample without duplicates."""
    group_N = torch.full((count,), -1)
    for number, group in enumerate(duplicates):
        group_N[list(group)] = number
    return group_N
