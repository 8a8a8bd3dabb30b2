"""Judgements of labels by the targets that self-adaptive training moved (Section 4.4 of the paper).

Targets are no calibrated probabilities: P(wrong) here is what the strongest other class has of the mass that it shares
with the label.

Shapes: N samples, K classes.
"""

import torch
from torch import Tensor

from selfadapt.evaluation.label_errors.list_quality import expected_quality
from selfadapt.evaluation.label_errors.out_of_sample import Judgements
from selfadapt.evaluation.label_errors.recovery import Verdicts


def judge_from_targets(found: Verdicts, labels_N: Tensor, num_classes: int) -> Judgements:
    """`found` is what the targets say of each label."""
    is_error_N = found.suggested_N != labels_N
    p_wrong_N = 1 - found.support_N
    return Judgements(
        p_wrong_N=p_wrong_N,
        is_error_N=is_error_N,
        suggested_N=found.suggested_N,
        confidence_N=found.confidence_N,
        runner_up_N=torch.where(is_error_N, labels_N, found.runner_up_N),
        weight_N=found.weight_N,
        few_K=torch.zeros(num_classes, dtype=torch.bool),
        quality=expected_quality(p_wrong_N, p_wrong_N, is_error_N),
    )
