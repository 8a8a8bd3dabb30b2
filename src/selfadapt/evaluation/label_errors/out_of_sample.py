"""P(wrong) of every label from out-of-sample predictions, and the likely label errors.

    odds_i = (sum over k other than y of prior_ik V[k, y]) / (prior_iy V[y, y])  +  c w_iy (1 - q_iy) / q_iy
    w_ik ∝ q_ik^(1/4) f_k^(3/4)
    P(wrong)_i = odds_i / (1 + odds_i)

The first term is Bayes' rule. The prior is the prediction (for duplicates, the evidence of the whole group:
duplicate_evidence.py) and V is the estimated transition matrix (noise_model.py). The second term models errors between
classes that the predictions q confuse anyway: labels w of an annotator who is less certain than q and tends towards the
class frequencies f, the mean of q. Such errors hardly change the likelihood of the labels, so their rate cannot be
estimated. Instead, c is set so that the expected share of wrong labels is at least m / (2 + 30 m), where m is the mean
probability that predictions give to classes other than the label. So without evidence at most half of the disagreement,
and at most one label in 30, counts as wrong.

The number of likely errors is the expected number of wrong labels. They are the labels with the largest P(wrong) for
which the prediction prefers another class. Classes with fewer than five samples are not judged.

Shapes: N samples, K classes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from selfadapt.evaluation.label_errors.build_report import new_report
from selfadapt.evaluation.label_errors.duplicate_evidence import group_of_each, with_duplicates
from selfadapt.evaluation.label_errors.list_quality import expected_quality
from selfadapt.evaluation.label_errors.report import LabelErrorReport
from selfadapt.models.linear.softmax_regression import pieces_of
from selfadapt.objectives.cross_fitting.cross_fit import LEAST_TO_JUDGE
from selfadapt.objectives.cross_fitting.transition import log_odds_wrong, posterior

_TINY = 1e-30
CERTAINTY = 0.25  # of w: the exponent of the prediction
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
    """Judge all labels except those of the classes `unjudged_K`.

    The error rate is estimated on the first `estimated_on` samples. Default: all.
    """
    first = slice(0, estimated_on)
    prior_NK = with_duplicates(predicted_NK, labels_N, matrix_KK, duplicates)
    too_few_K = torch.bincount(labels_N[first], minlength=len(matrix_KK)) < LEAST_TO_JUDGE
    if unjudged_K is not None:
        too_few_K |= unjudged_K
    judged_N = ~too_few_K[labels_N]
    visible_N, confusion_N = _odds(prior_NK, predicted_NK, labels_N, matrix_KK)
    known_n = judged_N[first].nonzero().flatten()
    single_n = known_n[group_of_each(duplicates, len(labels_N))[known_n] < 0]
    least = least_rate(prior_NK[single_n], labels_N[single_n])
    share = confusion_share(visible_N[single_n], confusion_N[single_n], least)
    p_wrong_N, rank_score_N = ranked(visible_N + share * confusion_N, judged_N, known_n)
    disagrees_N = judged_N & (prior_NK.gather(1, labels_N.unsqueeze(1)).squeeze(1) < prior_NK.amax(1))
    is_error_N = likely_errors(p_wrong_N, rank_score_N, disagrees_N, known_n)
    rows_NK = _class_probabilities(prior_NK, labels_N, matrix_KK, p_wrong_N)
    alternative_N = rows_NK.scatter(1, labels_N.unsqueeze(1), -1.0).argmax(1)
    suggested_N = torch.where(is_error_N, alternative_N, labels_N)
    label_n = prior_NK[known_n].gather(1, labels_N[known_n].unsqueeze(1)).squeeze(1)
    limits = bounds(visible_N[known_n], label_n, prior_NK[known_n].amax(1), labels_N[known_n])
    quality = expected_quality(p_wrong_N[known_n], *limits)
    return new_report(
        labels_N,
        len(matrix_KK),
        p_wrong_N=p_wrong_N,
        rank_score_N=rank_score_N,
        is_error_N=is_error_N,
        suggested_N=suggested_N,
        confidence_N=rows_NK.gather(1, suggested_N.unsqueeze(1)).squeeze(1),
        runner_up_N=rows_NK.scatter(1, suggested_N.unsqueeze(1), -1.0).argmax(1),
        weight_N=posterior(predicted_NK, labels_N, matrix_KK).amax(1),
        duplicates=duplicates,
        too_few_K=too_few_K,
        quality=quality,
        noise_matrix_KK=matrix_KK,
    )


def least_rate(prior_nK: Tensor, labels_n: Tensor) -> float:
    """The smallest expected share of wrong labels, used if the likelihood indicates fewer."""
    return least_rate_of(prior_nK.gather(1, labels_n.unsqueeze(1)))


def least_rate_of(label_n: Tensor) -> float:
    """The same from the probability of each label."""
    if not len(label_n):
        return 0.0
    disagreeing = float((1 - label_n).mean())
    return disagreeing / (2 + 30 * disagreeing)


def _odds(prior_NK: Tensor, predicted_NK: Tensor, labels_N: Tensor, matrix_KK: Tensor) -> tuple[Tensor, Tensor]:
    """Both terms of odds_i, the second with c = 1."""
    visible_N = log_odds_wrong(prior_NK, labels_N, matrix_KK)[0].double().exp()
    log_share_K, confusion_N = predicted_NK.mean(0).clamp_min(_TINY).log(), torch.empty_like(visible_N)
    for piece in pieces_of(*predicted_NK.shape):
        predicted_nK, labels_n1 = predicted_NK[piece], labels_N[piece].unsqueeze(1)
        uncertain_nK = CERTAINTY * predicted_nK.clamp_min(_TINY).log() + (1 - CERTAINTY) * log_share_K
        drawn_n1 = uncertain_nK.softmax(1).gather(1, labels_n1).double()
        label_n1 = predicted_nK.gather(1, labels_n1).double().clamp_min(_TINY)
        others_n1 = predicted_nK.scatter(1, labels_n1, 0.0).double().sum(1, keepdim=True)  # 1 - label would round to 0
        confusion_N[piece] = (drawn_n1 * others_n1 / label_n1).squeeze(1)
    return visible_N, confusion_N


def probability(odds_N: Tensor) -> Tensor:
    return (odds_N / (1 + odds_N)).nan_to_num(1.0).float()


def confusion_share(visible_n: Tensor, confusion_n: Tensor, rate: float) -> float:
    """c, by bisection; 0 if the first term alone gives a mean P(wrong) of at least `rate`."""
    if not len(visible_n) or float(probability(visible_n).mean()) >= rate:
        return 0.0
    low, high = -40.0, 10.0  # bounds of log c
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        mean = float(probability(visible_n + torch.tensor(middle).exp() * confusion_n).mean())
        low, high = (middle, high) if mean < rate else (low, middle)
    return float(torch.tensor((low + high) / 2).exp())


def ranked(odds_N: Tensor, judged_N: Tensor, known_n: Tensor) -> tuple[Tensor, Tensor]:
    """P(wrong), for labels not judged the mean, and the logarithm of the odds.

    Labels are ranked by the logarithm, because P(wrong) rounds to 1 for many of them.
    """
    p_wrong_N = probability(odds_N)
    if len(known_n):
        p_wrong_N = torch.where(judged_N, p_wrong_N, p_wrong_N[known_n].mean())
    return p_wrong_N, torch.where(judged_N, odds_N.log(), p_wrong_N.double().logit())


def likely_errors(p_wrong_N: Tensor, rank_score_N: Tensor, disagrees_N: Tensor, known_n: Tensor) -> Tensor:
    """A mask of the labels that rank first, as many as are expected to be wrong in `known_n`."""
    expected = round(float(p_wrong_N[known_n].double().sum()))
    if not expected:
        return torch.zeros_like(disagrees_N)
    last = rank_score_N[known_n].sort(descending=True).values[expected - 1]
    return disagrees_N & (rank_score_N >= last)


def _class_probabilities(prior_NK: Tensor, labels_N: Tensor, matrix_KK: Tensor, p_wrong_N: Tensor) -> Tensor:
    """P(true class): 1 - P(wrong) for the label, the rest in proportion to the posterior of the other classes."""
    rows_NK = (prior_NK * matrix_KK.T[labels_N]).scatter(1, labels_N.unsqueeze(1), 0.0)
    rows_NK = rows_NK / rows_NK.sum(1, keepdim=True).clamp_min(_TINY) * p_wrong_N.unsqueeze(1)
    return rows_NK.scatter(1, labels_N.unsqueeze(1), (1 - p_wrong_N).unsqueeze(1))


def bounds(visible_n: Tensor, label_n: Tensor, largest_n: Tensor, labels_n: Tensor) -> tuple[Tensor, Tensor]:
    """Lower bounds of P(wrong), and a mask of all labels that may be wrong.

    `label_n` and `largest_n` are the probabilities of the label and of the likeliest class.

    The bounds come from the likelihood. The mask selects labels that are far less likely than another class. If
    predictions agree with the labels no better than chance, it selects all labels that they disagree with.
    """
    agrees_n = label_n >= largest_n
    chance = float(torch.bincount(labels_n).max()) / len(labels_n) if len(labels_n) else 0.0
    if len(labels_n) and float(agrees_n.float().mean()) < chance + 2 * (chance * (1 - chance) / len(labels_n)) ** 0.5:
        return torch.zeros_like(label_n), ~agrees_n
    return probability(visible_n), largest_n > 3 * label_n
