"""Likely errors of splits that nothing was fitted to: as many of each as are expected to be wrong there.

Their predictions come from one fitted head, those of the training split from the folds, so P(wrong) of both need not
reach equally far, and no one threshold holds for both.

Shapes: N samples, K classes.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from selfadapt.evaluation.label_errors.out_of_sample import Judgements
from selfadapt.objectives.cross_fitting.transition import posterior

_TINY = 1e-30


def with_errors_of_each(
    found: Judgements, predicted_NK: Tensor, labels_N: Tensor, matrix_KK: Tensor, splits: Sequence[slice]
) -> Judgements:
    """The judgements with the likely errors of these splits chosen within each of them."""
    is_error_N = found.is_error_N.clone()
    for split in splits:
        labels_n, p_wrong_n = labels_N[split], found.p_wrong_N[split]
        differs_n = (predicted_NK[split].argmax(1) != labels_n) & ~found.few_K[labels_n]
        chosen_n = p_wrong_n.argsort(descending=True, stable=True)[: round(float(p_wrong_n.double().sum()))]
        is_error_N[split] = torch.zeros_like(differs_n).index_fill(0, chosen_n, True) & differs_n
    given_N1, p_wrong_N = labels_N.unsqueeze(1), found.p_wrong_N
    rival_N = torch.where(found.is_error_N, found.suggested_N, found.runner_up_N)
    others_NK = posterior(predicted_NK, labels_N, matrix_KK).scatter(1, given_N1, 0.0)
    share_N = others_NK.gather(1, rival_N.unsqueeze(1)).squeeze(1) / others_NK.sum(1).clamp_min(_TINY)
    confidence_N = torch.where(is_error_N, share_N * p_wrong_N, 1 - p_wrong_N)
    changed_N = is_error_N != found.is_error_N
    return replace(
        found,
        is_error_N=is_error_N,
        suggested_N=torch.where(is_error_N, rival_N, labels_N),
        runner_up_N=torch.where(changed_N, torch.where(is_error_N, labels_N, rival_N), found.runner_up_N),
        confidence_N=torch.where(changed_N, confidence_N, found.confidence_N),
    )
