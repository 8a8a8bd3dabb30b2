"""Counts of true against given or recovered labels, and the probabilities of label noise that follow from them.

Shapes: N samples, K classes.
"""

import torch
from torch import Tensor


def confusion_matrix(true_N: Tensor, recovered_N: Tensor, num_classes: int) -> Tensor:
    """The number of samples of class i that other labels, such as recovered ones, put into class j (Figure 6)."""
    cells_N = true_N * num_classes + recovered_N
    return torch.bincount(cells_N, minlength=num_classes**2).view(num_classes, num_classes)


def transition_matrix(true_N: Tensor, given_N: Tensor, num_classes: int) -> Tensor:
    """The probability of each given label j for each true class i; an absent class keeps its label."""
    counts_KK = confusion_matrix(true_N, given_N, num_classes).double()
    totals_K1 = counts_KK.sum(1, keepdim=True)
    return torch.where(totals_K1 > 0, counts_KK / totals_K1, torch.eye(num_classes).double())
