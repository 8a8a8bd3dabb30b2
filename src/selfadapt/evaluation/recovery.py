"""What the targets say about the labels (Sections 4.4 and 4.5): which are wrong, and what they should be.

Shapes: N samples, K classes.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Verdicts:
    """For each sample: the class its target points to, and how sure that is."""

    suggested_N: Tensor  # argmax_j t_ij
    confidence_N: Tensor  # t_ij of the suggested class
    weight_N: Tensor  # with which the sample counts in training: w_i = max_j t_ij, or 1
    margin_N: Tensor  # t_ij of the given label minus the largest other entry, from 1 (sure) to -1 (surely wrong)

    @property
    def order_N(self) -> Tensor:
        """The samples from most to least suspicious."""
        return self.margin_N.argsort(stable=True)


def judge(rows: Iterable[Tensor], given_N: Tensor, *, weighted: bool) -> Verdicts:
    """Verdicts from the targets, or predictions, which come in pieces of n×K.

    `weighted` says whether training weighs a sample by its target; otherwise every sample counts as one.
    """
    columns: list[tuple[Tensor, Tensor, Tensor]] = []
    start = 0
    for rows_nK in rows:
        given_n = given_N[start : start + len(rows_nK)].unsqueeze(1)
        confidence_n, suggested_n = rows_nK.max(1)
        others_nK = rows_nK.scatter(1, given_n, -torch.inf)
        margin_n = rows_nK.gather(1, given_n).squeeze(1) - others_nK.amax(1)
        columns.append((suggested_n, confidence_n, margin_n))
        start += len(rows_nK)
    suggested_N, confidence_N, margin_N = (torch.cat(column) for column in zip(*columns, strict=True))
    weight_N = confidence_N if weighted else torch.ones_like(confidence_N)
    return Verdicts(suggested_N=suggested_N, confidence_N=confidence_N, weight_N=weight_N, margin_N=margin_N)


def confusion_matrix(true_N: Tensor, recovered_N: Tensor, num_classes: int) -> Tensor:
    """How many samples of true class i were recovered as class j (Figure 6)."""
    cells_N = true_N * num_classes + recovered_N
    return torch.bincount(cells_N, minlength=num_classes**2).view(num_classes, num_classes)


def mean_weights(true_N: Tensor, recovered_N: Tensor, weight_N: Tensor, num_classes: int) -> Tensor:
    """The mean weight of samples of true class i recovered as class j; NaN where there are none (Figure 7)."""
    cells_N = true_N * num_classes + recovered_N
    sums = torch.bincount(cells_N, weights=weight_N.double(), minlength=num_classes**2)
    return sums.view(num_classes, num_classes) / confusion_matrix(true_N, recovered_N, num_classes)


def average_precision(order_N: Tensor, wrong_N: Tensor) -> float | None:
    """Mean precision at each wrong label down the ranking; None if no label is wrong."""
    hits_N = wrong_N[order_N].double()
    if not hits_N.any():
        return None
    precision_N = hits_N.cumsum(0) / torch.arange(1, len(hits_N) + 1)
    return ((precision_N * hits_N).sum() / hits_N.sum()).item()
