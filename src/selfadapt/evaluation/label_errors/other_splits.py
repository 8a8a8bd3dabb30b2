"""Likely label errors of validation and test splits: in each split, as many as are expected to be wrong there.

Predictions of these splits come from one fitted head, those of the training split from cross-fitting. P(wrong) is
therefore not on the same scale, and a common threshold would not fit both.

Shapes: N samples, K classes.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from selfadapt.evaluation.label_errors.report import LabelErrorReport
from selfadapt.objectives.cross_fitting.transition import posterior

_TINY = 1e-30


def with_errors_of_each(
    found: LabelErrorReport, predicted_NK: Tensor, labels_N: Tensor, matrix_KK: Tensor, splits: Sequence[slice]
) -> LabelErrorReport:
    """The report with the likely errors of these splits selected within each split."""
    was_error_N, suggested_N, runner_up_N, p_wrong_N, confidence_N, few_K = map(
        torch.from_numpy,
        (found.is_error, found.suggested_codes, found.runner_up_codes, found.p_wrong, found.confidence, found.too_few),
    )
    is_error_N = was_error_N.clone()
    for split in splits:
        labels_n, p_wrong_n = labels_N[split], p_wrong_N[split]
        disagrees_n = (predicted_NK[split].argmax(1) != labels_n) & ~few_K[labels_n]
        order_n = torch.from_numpy(found.rank_score[split]).argsort(descending=True, stable=True)
        chosen_n = order_n[: round(float(p_wrong_n.double().sum()))]
        is_error_N[split] = torch.zeros_like(disagrees_n).index_fill(0, chosen_n, True) & disagrees_n
    labels_N1 = labels_N.unsqueeze(1)
    alternative_N = torch.where(was_error_N, suggested_N, runner_up_N)
    others_NK = posterior(predicted_NK, labels_N, matrix_KK).scatter(1, labels_N1, 0.0)
    share_N = others_NK.gather(1, alternative_N.unsqueeze(1)).squeeze(1) / others_NK.sum(1).clamp_min(_TINY)
    new_confidence_N = torch.where(is_error_N, share_N * p_wrong_N, 1 - p_wrong_N)
    changed_N = is_error_N != was_error_N
    return replace(
        found,
        is_error=is_error_N.numpy(),
        suggested_codes=torch.where(is_error_N, alternative_N, labels_N).numpy(),
        runner_up_codes=torch.where(changed_N, torch.where(is_error_N, labels_N, alternative_N), runner_up_N).numpy(),
        confidence=torch.where(changed_N, new_confidence_N, confidence_N).numpy(),
    )
