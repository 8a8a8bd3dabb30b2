"""Label errors from targets (Sections 4.4 and 4.5): which labels are wrong, and what they should be.

Labels are ranked by their support: the mass of the given label g against that of the strongest other class r. If label
noise has a pattern, a class that is often labelled g is stronger evidence against g than one that never is. So the mass
of r is multiplied by f[r, g], with

    f[r, g] = (C[r, g] + a) / (E[r, g] + a)

C[r, g] counts the samples that confidently belong to r and have the label g: r is their likeliest class among those
whose mass is at least its average over the samples labelled so (the confident joint of Northcutt et al., "Confident
Learning", 2021). E[r, g] is the expected count if errors were spread evenly. a is the pseudo-count of a Gamma prior for
Poisson counts: 1 / b, with b the variance of C / E in excess of sampling variance. Noise without a pattern gives b = 0
and f = 1. A network that confuses classes also makes C vary, but only by about its size, so b is replaced by
b (b / (1 + b))^4: the pattern of label noise is much stronger.

Shapes: N samples, K classes.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from selfadapt.evaluation.label_errors.build_report import new_report
from selfadapt.evaluation.label_errors.confusion import confusion_matrix
from selfadapt.evaluation.label_errors.report import LabelErrorReport

WITH_PATTERN = 1000  # classes; with more, f is not estimated, and each row is needed once
_VERDICT = 5  # columns


def judge(
    rows: Callable[[], Iterable[Tensor]],
    given_N: Tensor,
    *,
    weighted: bool,
    label_share_N: Tensor | None = None,
) -> LabelErrorReport:
    """Judge labels from targets or predictions. Each call of `rows` yields them in blocks of n×K.

    `weighted` indicates whether training weights a sample by its target; otherwise every weight is 1. `label_share_N`
    is the share of a target that is still the given label: alpha^n after n updates. It is not evidence, so it is
    subtracted to make targets with different numbers of updates comparable. Confidence and support are ratios between
    two classes, so they remain comparable when all targets are soft. P(wrong) is 1 - support; it is not calibrated, and
    labels are ranked by it. Confidence is the share of the suggested class, from 0.5 to 1.
    """

    def evidence() -> Iterable[tuple[Tensor, Tensor, Tensor]]:
        return _evidence(rows(), given_N, label_share_N)

    num_classes, columns = 0, []
    for weight_n, given_n, evidence_nK in evidence():
        num_classes = evidence_nK.shape[1]
        columns.append(_verdicts(weight_n if weighted else torch.ones_like(weight_n), given_n, evidence_nK))
    verdicts = [torch.cat(column) for column in zip(*columns, strict=True)]
    factor_KK = _factors(evidence, num_classes) if 1 < num_classes <= WITH_PATTERN else None
    if factor_KK is not None:
        chunks = (
            _share(_mass(evidence_nK, given_n), _strongest_but(evidence_nK * factor_KK.T[given_n], given_n))
            for _, given_n, evidence_nK in evidence()
        )
        verdicts[-1] = torch.cat(list(chunks))
    return _report(given_N, num_classes, *verdicts)


def verdict_of_each(predicted_nK: Tensor, given_n: Tensor) -> Tensor:
    """Return what `judge_by_verdicts` needs of each prediction (n×5)."""
    (evidence,) = _evidence([predicted_nK], given_n, None)
    weight_n, *rest = evidence
    return torch.stack([own.double() for own in _verdicts(torch.ones_like(weight_n), *rest)], 1)


def judge_by_verdicts(verdicts_N5: Tensor, given_N: Tensor, num_classes: int) -> LabelErrorReport:
    """Do `judge` on predictions of more than WITH_PATTERN classes, of which only the verdicts were kept."""
    suggested_N, runner_up_N, confidence_N, weight_N, support_N = verdicts_N5.reshape(len(given_N), _VERDICT).unbind(1)
    exact = (own_N.float().contiguous() for own_N in (confidence_N, weight_N, support_N))
    return _report(given_N, num_classes, suggested_N.long(), runner_up_N.long(), *exact)


def _verdicts(weight_n: Tensor, given_n: Tensor, evidence_nK: Tensor) -> tuple[Tensor, ...]:
    """The suggested class, the runner-up, the confidence, the weight and the support of each label."""
    largest_n, likeliest_n = evidence_nK.max(1)
    mass_n = _mass(evidence_nK, given_n)
    suggested_n = torch.where(mass_n == largest_n, given_n, likeliest_n)  # ties keep the label
    confidence_n = _share(largest_n, _strongest_but(evidence_nK, suggested_n))
    support_n = _share(mass_n, _strongest_but(evidence_nK, given_n))
    return suggested_n, _runner_up(evidence_nK, suggested_n), confidence_n, weight_n, support_n


def _report(
    given_N: Tensor,
    num_classes: int,
    suggested_N: Tensor,
    runner_up_N: Tensor,
    confidence_N: Tensor,
    weight_N: Tensor,
    support_N: Tensor,
) -> LabelErrorReport:
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
    """Yield chunks: the largest entry of each row, the given labels, and the rows without the share of the label."""
    start = 0
    for rows_nK in rows:
        chunk = slice(start, start + len(rows_nK))
        start += len(rows_nK)
        given_n, weight_n = given_N[chunk], rows_nK.amax(1)
        if label_share_N is not None:
            share_n1 = label_share_N[chunk].to(rows_nK.dtype).unsqueeze(1)
            rows_nK = rows_nK.scatter_add(1, given_n.unsqueeze(1), -share_n1).clamp_min_(0)
        yield weight_n, given_n, rows_nK


def _mass(evidence_nK: Tensor, class_n: Tensor) -> Tensor:
    return evidence_nK.gather(1, class_n.unsqueeze(1)).squeeze(1)


def _strongest_but(evidence_nK: Tensor, class_n: Tensor) -> Tensor:
    return evidence_nK.scatter(1, class_n.unsqueeze(1), -torch.inf).amax(1)


def _runner_up(evidence_nK: Tensor, class_n: Tensor) -> Tensor:
    return evidence_nK.scatter(1, class_n.unsqueeze(1), -torch.inf).argmax(1)


def _factors(evidence: Callable[[], Iterable[tuple[Tensor, Tensor, Tensor]]], num_classes: int) -> Tensor | None:
    """f of the module docstring (K×K), or None if all entries are 1."""
    counts_KK = _confident_joint(evidence, num_classes).double()
    wrong_KK = ~torch.eye(num_classes, dtype=torch.bool)
    share = counts_KK[wrong_KK].sum() / (counts_KK.sum() * (num_classes - 1))
    expected_KK = (counts_KK.sum(1, keepdim=True) * share).expand(num_classes, num_classes)
    observed, expected = counts_KK[wrong_KK], expected_KK[wrong_KK]
    excess = ((observed - expected).square() - observed).sum() / expected.square().sum()
    if not excess > 0:  # NaN without any likely error
        return None
    prior = 1 / (excess * (excess / (1 + excess)) ** 4)
    return ((counts_KK + prior) / (expected_KK + prior)).float()


def _confident_joint(evidence: Callable[[], Iterable[tuple[Tensor, Tensor, Tensor]]], num_classes: int) -> Tensor:
    """The number of samples that confidently belong to class i and have the label j."""
    mass_K, given_K = torch.zeros(num_classes).double(), torch.zeros(num_classes).double()
    for _, given_n, evidence_nK in evidence():
        mass_K.index_add_(0, given_n, _mass(evidence_nK, given_n).double())
        given_K += torch.bincount(given_n, minlength=num_classes)
    threshold_K = torch.where(given_K > 0, mass_K / given_K, torch.inf).float()
    counts_KK = torch.zeros(num_classes, num_classes, dtype=torch.int64)
    for _, given_n, evidence_nK in evidence():
        largest_n, likeliest_n = torch.where(evidence_nK >= threshold_K, evidence_nK, -torch.inf).max(1)
        likeliest_n = torch.where(_mass(evidence_nK, given_n) == largest_n, given_n, likeliest_n)
        confident_n = largest_n.isfinite()
        counts_KK += confusion_matrix(likeliest_n[confident_n], given_n[confident_n], num_classes)
    return counts_KK


def _share(mass_n: Tensor, other_n: Tensor) -> Tensor:
    """mass / (mass + other); 0.5 where both are 0, and 1 with a single class."""
    other_n = other_n.clamp_min(0)
    return torch.where(mass_n + other_n > 0, mass_n / (mass_n + other_n), 0.5)


def average_precision(order_N: Tensor, wrong_N: Tensor) -> float | None:
    """The mean precision at the ranks of the wrong labels; None if no label is wrong."""
    hits_N = wrong_N[order_N].double()
    if not hits_N.any():
        return None
    precision_N = hits_N.cumsum(0) / torch.arange(1, len(hits_N) + 1)
    return ((precision_N * hits_N).sum() / hits_N.sum()).item()
