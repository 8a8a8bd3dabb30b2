"""What the targets say about the labels (Sections 4.4 and 4.5): which are wrong, and what they should be.

Labels are ranked by their support: the mass of the given label g against that of the strongest other class r. Where
labels go wrong in certain ways, a class that is often labelled g is better evidence against g than one that never is.
So its mass counts f[r, g] times, with

    f[r, g] = (C[r, g] + a) / (E[r, g] + a)

C[r, g] counts the samples that confidently belong to r and were given g: r is their likeliest class among those whose
mass is at least what it is on average where the label says so (the confident joint of Northcutt et al., "Confident
Learning", 2021). E[r, g] is what it would be if mistakes were spread evenly. a is what a Gamma prior for Poisson counts
is worth: 1 / b, with b the variance of C / E beyond that of chance. Noise without a pattern makes b zero and every f
one. But a network that confuses classes scatters the C as well, if only by about as much as they are, so b counts as
b (b / (1 + b))^4: a pattern of labels is much stronger than that.

Shapes: N samples, K classes.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from selfadapt.evaluation.label_errors.build_report import new_report
from selfadapt.evaluation.label_errors.confusion import confusion_matrix
from selfadapt.evaluation.label_errors.report import LabelErrorReport

_MOST_CLASSES = 1000  # of which the pairs are counted


def judge(
    rows: Callable[[], Iterable[Tensor]],
    given_N: Tensor,
    *,
    weighted: bool,
    label_share_N: Tensor | None = None,
) -> LabelErrorReport:
    """Assess labels by targets or predictions, which `rows` yields in blocks of n×K each time it is called.

    `weighted` says whether training weights a sample by its target; otherwise every weight is 1. `label_share_N` is the
    share of a target that is still the given label: alpha^n after n updates. It is not evidence and is subtracted, so
    that targets that were updated less often are read like the others. Confidence and support are shares between two
    classes, so they stay comparable where all targets are soft. P(wrong) is 1 - support, which is not calibrated, and
    labels are ranked by it. Confidence is the share of the suggested class, from 0.5 to 1.
    """

    def evidence() -> Iterable[tuple[Tensor, Tensor, Tensor]]:
        return _evidence(rows(), given_N, label_share_N)

    num_classes, columns = 0, []
    for weight_n, given_n, evidence_nK in evidence():
        num_classes = evidence_nK.shape[1]
        largest_n, likeliest_n = evidence_nK.max(1)
        mass_n = _mass(evidence_nK, given_n)
        suggested_n = torch.where(mass_n == largest_n, given_n, likeliest_n)  # the label stays where both are level
        confidence_n = _share(largest_n, _strongest_but(evidence_nK, suggested_n))
        support_n = _share(mass_n, _strongest_but(evidence_nK, given_n))
        weight_n = weight_n if weighted else torch.ones_like(weight_n)
        columns.append((suggested_n, confidence_n, weight_n, support_n, _runner_up(evidence_nK, suggested_n)))
    suggested_N, confidence_N, weight_N, support_N, runner_up_N = (
        torch.cat(column) for column in zip(*columns, strict=True)
    )
    factor_KK = _factors(evidence, num_classes) if 1 < num_classes <= _MOST_CLASSES else None
    if factor_KK is not None:
        pieces = (
            _share(_mass(evidence_nK, given_n), _strongest_but(evidence_nK * factor_KK.T[given_n], given_n))
            for _, given_n, evidence_nK in evidence()
        )
        support_N = torch.cat(list(pieces))
    return new_report(
        given_N,
        num_classes,
        suggested_N=suggested_N,
        runner_up_N=runner_up_N,
        is_error_N=suggested_N != given_N,
        p_wrong_N=1 - support_N,
        rank_score_N=-support_N,
        confidence_N=confidence_N,
        weight_N=weight_N,
    )


def _evidence(
    rows: Iterable[Tensor], given_N: Tensor, label_share_N: Tensor | None
) -> Iterable[tuple[Tensor, Tensor, Tensor]]:
    """Piece by piece: the largest entry of each row, the given labels, and the rows less what is left of the label."""
    start = 0
    for rows_nK in rows:
        piece = slice(start, start + len(rows_nK))
        start += len(rows_nK)
        given_n, weight_n = given_N[piece], rows_nK.amax(1)
        if label_share_N is not None:
            share_n1 = label_share_N[piece].to(rows_nK.dtype).unsqueeze(1)
            rows_nK = rows_nK.scatter_add(1, given_n.unsqueeze(1), -share_n1).clamp_min_(0)
        yield weight_n, given_n, rows_nK


def _mass(evidence_nK: Tensor, class_n: Tensor) -> Tensor:
    return evidence_nK.gather(1, class_n.unsqueeze(1)).squeeze(1)


def _strongest_but(evidence_nK: Tensor, class_n: Tensor) -> Tensor:
    return evidence_nK.scatter(1, class_n.unsqueeze(1), -torch.inf).amax(1)


def _runner_up(evidence_nK: Tensor, class_n: Tensor) -> Tensor:
    return evidence_nK.scatter(1, class_n.unsqueeze(1), -torch.inf).argmax(1)


def _factors(evidence: Callable[[], Iterable[tuple[Tensor, Tensor, Tensor]]], num_classes: int) -> Tensor | None:
    """f of this file's head (K×K), or None where all are one."""
    counts_KK = _confident_joint(evidence, num_classes).double()
    wrong_KK = ~torch.eye(num_classes, dtype=torch.bool)
    share = counts_KK[wrong_KK].sum() / (counts_KK.sum() * (num_classes - 1))
    even_KK = (counts_KK.sum(1, keepdim=True) * share).expand(num_classes, num_classes)
    counted, even = counts_KK[wrong_KK], even_KK[wrong_KK]
    beyond_chance = ((counted - even).square() - counted).sum() / even.square().sum()
    if not beyond_chance > 0:  # NaN where nothing is suspect
        return None
    prior = 1 / (beyond_chance * (beyond_chance / (1 + beyond_chance)) ** 4)
    return ((counts_KK + prior) / (even_KK + prior)).float()


def _confident_joint(evidence: Callable[[], Iterable[tuple[Tensor, Tensor, Tensor]]], num_classes: int) -> Tensor:
    """How many samples confidently belong to class i and were given label j."""
    mass_K, given_K = torch.zeros(num_classes).double(), torch.zeros(num_classes).double()
    for _, given_n, evidence_nK in evidence():
        mass_K.index_add_(0, given_n, _mass(evidence_nK, given_n).double())
        given_K += torch.bincount(given_n, minlength=num_classes)
    usual_K = torch.where(given_K > 0, mass_K / given_K, torch.inf).float()
    counts_KK = torch.zeros(num_classes, num_classes, dtype=torch.int64)
    for _, given_n, evidence_nK in evidence():
        largest_n, likeliest_n = torch.where(evidence_nK >= usual_K, evidence_nK, -torch.inf).max(1)
        likeliest_n = torch.where(_mass(evidence_nK, given_n) == largest_n, given_n, likeliest_n)
        fine_n = largest_n.isfinite()
        counts_KK += confusion_matrix(likeliest_n[fine_n], given_n[fine_n], num_classes)
    return counts_KK


def _share(mass_n: Tensor, other_n: Tensor) -> Tensor:
    """mass / (mass + other); 0.5 where both are 0, and 1 with a single class."""
    other_n = other_n.clamp_min(0)
    return torch.where(mass_n + other_n > 0, mass_n / (mass_n + other_n), 0.5)


def average_precision(order_N: Tensor, wrong_N: Tensor) -> float | None:
    """Mean precision at each wrong label down the ranking; None if no label is wrong."""
    hits_N = wrong_N[order_N].double()
    if not hits_N.any():
        return None
    precision_N = hits_N.cumsum(0) / torch.arange(1, len(hits_N) + 1)
    return ((precision_N * hits_N).sum() / hits_N.sum()).item()
