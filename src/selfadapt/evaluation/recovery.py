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

    suggested_N: Tensor  # the likeliest class; the given label where it is as likely
    confidence_N: Tensor  # the mass of the suggested class, as a share of it and the runner-up: from 0.5 to 1
    weight_N: Tensor  # with which the sample counts in training: w_i = max_j t_ij, or 1
    support_N: Tensor  # the mass of the given label, as a share of it and its strongest rival: from 0 (wrong) to 1

    @property
    def order_N(self) -> Tensor:
        """The samples from most to least suspicious."""
        return self.support_N.argsort(stable=True)


def judge(rows: Iterable[Tensor], given_N: Tensor, *, weighted: bool, label_share_N: Tensor | None = None) -> Verdicts:
    """Verdicts from the targets, or predictions, which come in pieces of n×K.

    `weighted` says whether training weighs a sample by its target; otherwise every sample counts as one.
    `label_share_N` is what of a target is still its given label: alpha^n after n updates. It is no evidence and is
    taken out, so that targets that had little time to move are read like others. Confidence and support are shares
    between two classes: a network that is unsure of everything leaves soft targets, and their order still tells.
    """
    columns: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    start = 0
    for rows_nK in rows:
        given_n = given_N[start : start + len(rows_nK)].unsqueeze(1)
        weight_n = rows_nK.amax(1)
        if label_share_N is not None:
            share_n = label_share_N[start : start + len(rows_nK)].to(rows_nK.dtype)
            rows_nK = rows_nK.scatter_add(1, given_n, -share_n.unsqueeze(1)).clamp_min_(0)
        largest_n, likeliest_n = rows_nK.max(1)
        mass_n = rows_nK.gather(1, given_n).squeeze(1)
        suggested_n = torch.where(mass_n == largest_n, given_n.squeeze(1), likeliest_n)  # in doubt the label stays
        runner_up_n = rows_nK.scatter(1, suggested_n.unsqueeze(1), -torch.inf).amax(1)
        rival_n = rows_nK.scatter(1, given_n, -torch.inf).amax(1)
        columns.append((suggested_n, _share(largest_n, runner_up_n), weight_n, _share(mass_n, rival_n)))
        start += len(rows_nK)
    suggested_N, confidence_N, weight_N, support_N = (torch.cat(column) for column in zip(*columns, strict=True))
    weight_N = weight_N if weighted else torch.ones_like(weight_N)
    return Verdicts(suggested_N=suggested_N, confidence_N=confidence_N, weight_N=weight_N, support_N=support_N)


def _share(mass_n: Tensor, rival_n: Tensor) -> Tensor:
    """mass / (mass + rival); one half where both are nothing, one where there is no rival at all."""
    rival_n = rival_n.clamp_min(0)
    return torch.where(mass_n + rival_n > 0, mass_n / (mass_n + rival_n), 0.5)


def transition_matrix(true_N: Tensor, given_N: Tensor, num_classes: int) -> Tensor:
    """The odds of each given label j for each true class i; a class that does not occur keeps its label."""
    counts_KK = confusion_matrix(true_N, given_N, num_classes).double()
    totals_K1 = counts_KK.sum(1, keepdim=True)
    return torch.where(totals_K1 > 0, counts_KK / totals_K1, torch.eye(num_classes).double())


def confusion_matrix(true_N: Tensor, recovered_N: Tensor, num_classes: int) -> Tensor:
    """How many samples of class i are of class j by the other labels, such as recovered ones (Figure 6)."""
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
