"""What the labels of its duplicates say of a sample.

Duplicates show the same thing, so they have one true class k. Their predictions are nearly the same, so they count
once; their labels were given one by one, so each counts:

    prior_ik ∝ (prod over the m members j of q_jk)^(1/m)  prod over members j other than i of V[k, y_j]^g

With its own label a sample then has the posterior of its group. The member that disagrees with the others rises in the
list, and those that agree fall. g is the share of conflicts that errors explain: where duplicates disagree more often
than labels are wrong, many show something that has two names, and their labels say less of each other.

Shapes: N samples, K classes, m members of a group.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

_TINY = 1e-30


def with_duplicates(
    predicted_NK: Tensor, labels_N: Tensor, matrix_KK: Tensor, duplicates: Sequence[Sequence[int]]
) -> Tensor:
    """The predictions, those of duplicates replaced by what the whole group says but for the sample's own label."""
    prior_NK, explained = predicted_NK.clone(), explained_conflicts(labels_N, matrix_KK, duplicates)
    for group in duplicates:
        members_m = torch.as_tensor(list(group))
        own_mK = explained * matrix_KK.T[labels_N[members_m]].clamp_min(_TINY).log()
        common_K = predicted_NK[members_m].clamp_min(_TINY).log().mean(0) + own_mK.sum(0)
        prior_NK[members_m] = (common_K - own_mK).softmax(1)
    return prior_NK


def explained_conflicts(labels_N: Tensor, matrix_KK: Tensor, duplicates: Sequence[Sequence[int]]) -> float:
    """g: the number of groups expected to have different labels by V, over the number that do; at most 1.

    One more of both is counted, so that a single conflict says little about conflicts in general.
    """
    right = float(matrix_KK.diagonal()[labels_N].mean())
    expected = sum(1 - right ** len(group) for group in duplicates)
    observed = sum(len(labels_N[list(group)].unique()) > 1 for group in duplicates)
    return min(1.0, (expected + 1) / (observed + 1))


def group_of_each(duplicates: Sequence[Sequence[int]], count: int) -> Tensor:
    """The number of each sample's group of duplicates, from 0; -1 for a sample that has none."""
    group_N = torch.full((count,), -1)
    for number, group in enumerate(duplicates):
        group_N[list(group)] = number
    return group_N
