"""P(wrong) of every label, from out-of-sample predictions, and the likely errors.

    odds_i = (sum over k other than y of prior_ik V[k, y]) / (prior_iy V[y, y])
             + c (max over k other than y of q_ik) / q_iy
    P(wrong)_i = odds_i / (1 + odds_i)

The first term is Bayes' rule, with the prediction as the prior (for duplicates, what the whole group says:
duplicate_evidence.py) and V as estimated (noise_model.py). The second term stands for errors that follow
what the predictions q confuse anyway. They leave no trace in the likelihood of the labels, so their rate cannot be
estimated; c is set so that at least a share of m / (2 + 30 m) of the labels is expected to be wrong, with m the mean
mass that predictions give to other classes than the label. Of what disagrees at most half counts as an error, and at
most one label in 30, without evidence.

As many labels are likely errors as are expected to be wrong, those of the largest P(wrong), if the prediction prefers
another class. Classes of fewer than five samples are not judged.

Shapes: N samples, K classes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from selfadapt.evaluation.label_errors.build_report import new_report
from selfadapt.evaluation.label_errors.duplicate_evidence import group_of_each, with_duplicates
from selfadapt.evaluation.label_errors.list_quality import expected_quality
from selfadapt.evaluation.label_errors.report import LabelErrorReport
from selfadapt.objectives.cross_fitting.cross_fit import LEAST_TO_JUDGE
from selfadapt.objectives.cross_fitting.transition import doubts, posterior

_TINY = 1e-30
_HALVINGS = 60


def judge_out_of_sample(
    predicted_NK: Tensor,
    labels_N: Tensor,
    matrix_KK: Tensor,
    duplicates: Sequence[Sequence[int]] = (),
    *,
    estimated_on: int | None = None,
    unjudged_K: Tensor | None = None,
) -> LabelErrorReport:
    """Judge all labels but those of the classes `unjudged_K`.

    The rate of errors is estimated on the first `estimated_on` samples, or on all.
    """
    first = slice(0, estimated_on)
    prior_NK = with_duplicates(predicted_NK, labels_N, matrix_KK, duplicates)
    few_K = torch.bincount(labels_N[first], minlength=len(matrix_KK)) < LEAST_TO_JUDGE
    if unjudged_K is not None:
        few_K |= unjudged_K
    judged_N = ~few_K[labels_N]
    visible_N, follows_N = _odds(prior_NK, predicted_NK, labels_N, matrix_KK)
    known_n = judged_N[first].nonzero().flatten()
    single_n = known_n[group_of_each(duplicates, len(labels_N))[known_n] < 0]
    least = least_rate(prior_NK[single_n], labels_N[single_n])
    share = _confusion_share(visible_N[single_n], follows_N[single_n], least)
    p_wrong_N = _probability(visible_N + share * follows_N)
    if len(known_n):
        p_wrong_N = torch.where(judged_N, p_wrong_N, p_wrong_N[known_n].mean())  # nothing is known of the others
    differs_N = judged_N & (prior_NK.gather(1, labels_N.unsqueeze(1)).squeeze(1) < prior_NK.amax(1))
    is_error_N = _likely_errors(p_wrong_N, differs_N, judged_N, known_n)
    rows_NK = _class_probabilities(prior_NK, labels_N, matrix_KK, p_wrong_N)
    rival_N = rows_NK.scatter(1, labels_N.unsqueeze(1), -1.0).argmax(1)
    suggested_N = torch.where(is_error_N, rival_N, labels_N)
    quality = expected_quality(p_wrong_N[known_n], *_extremes(visible_N[known_n], prior_NK[known_n], labels_N[known_n]))
    return new_report(
        labels_N,
        len(matrix_KK),
        p_wrong_N=p_wrong_N,
        is_error_N=is_error_N,
        suggested_N=suggested_N,
        confidence_N=rows_NK.gather(1, suggested_N.unsqueeze(1)).squeeze(1),
        runner_up_N=rows_NK.scatter(1, suggested_N.unsqueeze(1), -1.0).argmax(1),
        weight_N=posterior(predicted_NK, labels_N, matrix_KK).amax(1),
        duplicates=duplicates,
        too_few_K=few_K,
        quality=quality,
        noise_matrix_KK=matrix_KK,
    )


def least_rate(prior_nK: Tensor, labels_n: Tensor) -> float:
    """The share of labels that are expected to be wrong even if the likelihood shows none."""
    if not len(labels_n):
        return 0.0
    disagreeing = float((1 - prior_nK.gather(1, labels_n.unsqueeze(1))).mean())
    return disagreeing / (2 + 30 * disagreeing)


def _odds(prior_NK: Tensor, predicted_NK: Tensor, labels_N: Tensor, matrix_KK: Tensor) -> tuple[Tensor, Tensor]:
    """Both terms of the odds that a label is wrong, the second with c = 1."""
    visible_N = doubts(prior_NK, labels_N, matrix_KK)[0].double().exp()
    given_N1 = labels_N.unsqueeze(1)
    own_N = predicted_NK.gather(1, given_N1).squeeze(1).double().clamp_min(_TINY)
    return visible_N, predicted_NK.scatter(1, given_N1, 0.0).amax(1).double() / own_N


def _probability(odds_N: Tensor) -> Tensor:
    return (odds_N / (1 + odds_N)).nan_to_num(1.0).float()


def _confusion_share(visible_n: Tensor, follows_n: Tensor, rate: float) -> float:
    """c: 0 if the first term alone makes at least this share of the labels wrong."""
    if not len(visible_n) or float(_probability(visible_n).mean()) >= rate:
        return 0.0
    low, high = -40.0, 10.0  # of log c
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        mean = float(_probability(visible_n + torch.tensor(middle).exp() * follows_n).mean())
        low, high = (middle, high) if mean < rate else (low, middle)
    return float(torch.tensor((low + high) / 2).exp())


def _likely_errors(p_wrong_N: Tensor, differs_N: Tensor, judged_N: Tensor, known_n: Tensor) -> Tensor:
    """Labels at least as likely wrong as the last of the expected number among those known."""
    expected = round(float(p_wrong_N[known_n].double().sum()))
    if not expected:
        return torch.zeros_like(judged_N)
    last = p_wrong_N[known_n].sort(descending=True).values[expected - 1]
    return differs_N & (p_wrong_N >= last)


def _class_probabilities(prior_NK: Tensor, labels_N: Tensor, matrix_KK: Tensor, p_wrong_N: Tensor) -> Tensor:
    """P(true class) with 1 - P(wrong) for the label and the rest shared among the others as the posterior has it."""
    rows_NK = (prior_NK * matrix_KK.T[labels_N]).scatter(1, labels_N.unsqueeze(1), 0.0)
    rows_NK = rows_NK / rows_NK.sum(1, keepdim=True).clamp_min(_TINY) * p_wrong_N.unsqueeze(1)
    return rows_NK.scatter(1, labels_N.unsqueeze(1), (1 - p_wrong_N).unsqueeze(1))


def _extremes(visible_n: Tensor, prior_nK: Tensor, labels_n: Tensor) -> tuple[Tensor, Tensor]:
    """Lower bounds of P(wrong), and a mask of the labels that may be wrong at most.

    The bounds come from the likelihood; the mask selects labels that are far less likely than another class. If
    predictions agree with the labels no better than chance, any label that they disagree with may be wrong.
    """
    given_n = prior_nK.gather(1, labels_n.unsqueeze(1)).squeeze(1)
    agrees_n = given_n >= prior_nK.amax(1)
    chance = float(torch.bincount(labels_n).max()) / len(labels_n) if len(labels_n) else 0.0
    if len(labels_n) and float(agrees_n.float().mean()) < chance + 2 * (chance * (1 - chance) / len(labels_n)) ** 0.5:
        return torch.zeros_like(given_n), ~agrees_n
    return _probability(visible_n), prior_nK.amax(1) > 3 * given_n
