"""P(wrong) of every label from sparse predictions, by the rule of out_of_sample.py.

Each process reads the rows of its samples once and keeps a few numbers of each. They are gathered, so all processes
return the same report. Outliers are found by class prototypes and a shared covariance: the distance of outliers.py is
the Mahalanobis distance to the nearest class mean of the other folds.

Shapes: N samples, n of a block or of this process, M classes of a row, m members of a group, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from selfadapt.core import distributed
from selfadapt.evaluation.label_errors.build_report import new_report
from selfadapt.evaluation.label_errors.duplicate_evidence import explained_conflicts, group_of_each
from selfadapt.evaluation.label_errors.list_quality import expected_quality
from selfadapt.evaluation.label_errors.out_of_sample import (
    CERTAINTY,
    bounds,
    confusion_share,
    least_rate_of,
    likely_errors,
    ranked,
)
from selfadapt.evaluation.label_errors.outliers import combined_scores
from selfadapt.evaluation.label_errors.report import LabelErrorReport
from selfadapt.objectives.cross_fitting.cross_fit import LEAST_TO_JUDGE
from selfadapt.objectives.cross_fitting.streamed.sparse_predictions import SparseRows
from selfadapt.objectives.cross_fitting.streamed.streamed_fit import StreamedFit

_TINY = 1e-30


@dataclass(frozen=True)
class _Evidence:
    """What is kept of the predictions of a sample."""

    visible_N: Tensor  # odds of a wrong label from the likelihood, and from confusion
    confusion_N: Tensor
    label_N: Tensor  # probability of the label, and of the likeliest class
    largest_N: Tensor
    alternative_N: Tensor  # the two likeliest classes other than the label, and their shares of the posterior of these
    second_N: Tensor
    alternative_share_N: Tensor
    second_share_N: Tensor
    weight_N: Tensor
    entropy_N: Tensor

    @classmethod
    def of(cls, predicted: SparseRows, prior: SparseRows, fit: StreamedFit, share_K: Tensor) -> "_Evidence":
        posterior_nM = prior.value_nM * fit.noise.transition.of_rows(prior)
        others_nm = posterior_nM[:, 1:]
        other_n = others_nm.sum(1).clamp_min(_TINY)
        places_n2 = others_nm.topk(min(2, others_nm.shape[1]), 1).indices[:, [0, -1]]
        classes_n2, shares_n2 = prior.class_nM[:, 1:].gather(1, places_n2), others_nm.gather(1, places_n2)
        shares_n2 = shares_n2 / other_n.unsqueeze(1)
        if others_nm.shape[1] == 1:  # of two classes there is no second alternative
            shares_n2[:, 1] = -1
        weighted_nM = predicted.value_nM * fit.noise.transition.of_rows(predicted)
        return cls(
            visible_N=other_n / posterior_nM[:, 0].clamp_min(_TINY),
            confusion_N=_confusion(predicted, share_K),
            label_N=prior.value_nM[:, 0],
            largest_N=prior.value_nM.amax(1),
            alternative_N=classes_n2[:, 0].int(),
            second_N=classes_n2[:, 1].int(),
            alternative_share_N=shares_n2[:, 0],
            second_share_N=shares_n2[:, 1],
            weight_N=weighted_nM.amax(1) / weighted_nM.sum(1).clamp_min(_TINY),
            entropy_N=predicted.entropy(),
        )

    @classmethod
    def gathered(cls, fit: StreamedFit, prior_of: "_GroupPriors") -> "_Evidence":
        passes = fit.predictions.passes
        columns = {name: passes.own(torch.int32 if name in _CLASSES else torch.float32) for name in _COLUMNS}
        share_K = _class_shares(fit)
        for rows in fit.predictions.blocks():
            predicted = rows.sharpened(fit.noise.temperature)
            found = cls.of(predicted, prior_of(predicted), fit, share_K)
            for name, own_n in columns.items():
                own_n[rows.position_n - passes.start] = getattr(found, name)
        return cls(**{name: distributed.all_gather_rows(columns.pop(name)) for name in _COLUMNS})


_COLUMNS = tuple(own.name for own in fields(_Evidence))
_CLASSES = ("alternative_N", "second_N")


def _class_shares(fit: StreamedFit) -> Tensor:
    """f: the mean prediction."""
    share_K = torch.zeros(fit.predictions.num_classes).double()
    for rows in fit.predictions.blocks():
        own = rows.sharpened(fit.noise.temperature)
        rest_n = own.rest_n.double() / max(1, own.num_classes - own.class_nM.shape[1])
        share_K += rest_n.sum()
        share_K.index_add_(0, own.class_nM.flatten(), (own.value_nM - rest_n.unsqueeze(1)).flatten())
    return (distributed.all_reduce_sum(share_K) / len(fit.predictions.passes.shards)).float()


def _confusion(predicted: SparseRows, share_K: Tensor) -> Tensor:
    """The second term of the odds, with c = 1."""
    tendency_K = share_K.clamp_min(_TINY) ** (1 - CERTAINTY)
    drawn_nM = predicted.value_nM.clamp_min(_TINY) ** CERTAINTY * tendency_K[predicted.class_nM]
    rest_n = predicted.rest_n / max(1, predicted.num_classes - predicted.class_nM.shape[1])
    others_n = tendency_K.sum() - tendency_K[predicted.class_nM].sum(1)
    drawn_n = drawn_nM[:, 0] / (drawn_nM.sum(1) + rest_n**CERTAINTY * others_n.clamp_min(0))
    wrong_n = predicted.value_nM[:, 1:].sum(1) + predicted.rest_n
    odds_n: Tensor = drawn_n * wrong_n / predicted.value_nM[:, 0].clamp_min(_TINY)
    return odds_n


@dataclass(frozen=True)
class _GroupPriors:
    """The predictions of duplicates, combined with the labels of the other members (duplicate_evidence.py)."""

    position_m: Tensor  # sorted
    rows: SparseRows

    @classmethod
    def of(
        cls, fit: StreamedFit, labels_N: Tensor, matrix_KK: Tensor, duplicates: Sequence[Sequence[int]]
    ) -> "_GroupPriors":
        position_m = torch.tensor(sorted({sample for group in duplicates for sample in group}), dtype=torch.int64)
        rows = fit.predictions.take(position_m).sharpened(fit.noise.temperature)
        share = explained_conflicts(labels_N, matrix_KK, duplicates) if duplicates else 1.0
        class_mM, value_mM = rows.class_nM.clone(), rows.value_nM.clone()
        for group in duplicates:
            place_g = torch.searchsorted(position_m, torch.tensor(list(group)))
            class_gM, value_gM = _combined(rows[place_g], matrix_KK, share)
            class_mM[place_g], value_mM[place_g] = class_gM, value_gM
        rest_m = (1 - value_mM.sum(1)).clamp_min(0)
        return cls(position_m, SparseRows(position_m, class_mM, value_mM, rest_m, rows.num_classes))

    def __call__(self, predicted: SparseRows) -> SparseRows:
        if not len(self.position_m):
            return predicted
        place_n = torch.searchsorted(self.position_m, predicted.position_n).clamp_max(len(self.position_m) - 1)
        own_n = (self.position_m[place_n] == predicted.position_n).nonzero().flatten()
        class_nM, value_nM = predicted.class_nM.clone(), predicted.value_nM.clone()
        class_nM[own_n], value_nM[own_n] = self.rows.class_nM[place_n[own_n]], self.rows.value_nM[place_n[own_n]]
        return SparseRows(predicted.position_n, class_nM, value_nM, predicted.rest_n, predicted.num_classes)


def _combined(group: SparseRows, matrix_KK: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Classes and probabilities of the members of a group, over the classes that any of them keeps."""
    class_u, place_gM = group.class_nM.unique(return_inverse=True)
    rest_g1 = (group.rest_n / max(1, group.num_classes - group.class_nM.shape[1])).unsqueeze(1)
    value_gu = rest_g1.repeat(1, len(class_u)).scatter(1, place_gM, group.value_nM)
    label_gu = share * matrix_KK[class_u][:, group.labels_n].T.clamp_min(_TINY).log()
    common_u = value_gu.clamp_min(_TINY).log().mean(0) + label_gu.sum(0)
    prior_gu = (common_u - label_gu).softmax(1)
    label_g1 = place_gM[:, :1]
    others_gM = prior_gu.scatter(1, label_g1, -1.0).topk(group.class_nM.shape[1] - 1, 1).indices
    place_gM = torch.cat((label_g1, others_gM), 1)
    return class_u[place_gM], prior_gu.gather(1, place_gM)


def judge_streamed(
    fit: StreamedFit, labels_N: Tensor, duplicates: Sequence[Sequence[int]], unjudged_K: Tensor
) -> LabelErrorReport:
    """Judge all labels except those of the classes `unjudged_K` and of classes with too few samples."""
    matrix_KK = fit.noise.transition.matrix()
    own = _Evidence.gathered(fit, _GroupPriors.of(fit, labels_N, matrix_KK, duplicates))
    too_few_K = unjudged_K | (torch.bincount(labels_N, minlength=len(matrix_KK)) < LEAST_TO_JUDGE)
    judged_N = ~too_few_K[labels_N]
    known_n = judged_N.nonzero().flatten()
    single_N = judged_N & (group_of_each(duplicates, len(labels_N)) < 0)
    least = least_rate_of(own.label_N[single_N])
    share = confusion_share(own.visible_N[single_N].double(), own.confusion_N[single_N].double(), least)
    p_wrong_N, rank_score_N = ranked(own.visible_N.double() + share * own.confusion_N, judged_N, known_n)
    is_error_N = likely_errors(p_wrong_N, rank_score_N, judged_N & (own.label_N < own.largest_N), known_n)
    limits = bounds(own.visible_N[known_n], own.label_N[known_n], own.largest_N[known_n], labels_N[known_n])
    quality = expected_quality(p_wrong_N[known_n], *limits)
    second_is_label_N = 1 - p_wrong_N >= p_wrong_N * own.second_share_N
    report = new_report(
        labels_N,
        len(matrix_KK),
        p_wrong_N=p_wrong_N,
        rank_score_N=rank_score_N,
        is_error_N=is_error_N,
        suggested_N=torch.where(is_error_N, own.alternative_N, labels_N.int()),
        confidence_N=torch.where(is_error_N, p_wrong_N * own.alternative_share_N, 1 - p_wrong_N),
        runner_up_N=torch.where(
            is_error_N, torch.where(second_is_label_N, labels_N.int(), own.second_N), own.alternative_N
        ),
        weight_N=own.weight_N,
        duplicates=duplicates,
        too_few_K=too_few_K,
        quality=quality,
        noise_matrix_KK=matrix_KK,
    )
    distance_N = distributed.all_gather_rows(fit.distance_n).sqrt()
    outlier_N = combined_scores(distance_N / distance_N.median().clamp_min(1e-12), own.entropy_N)
    return replace(
        report,
        given_codes=report.given_codes.astype(np.int32),
        predicted_codes=report.predicted_codes.astype(np.int32),
        duplicate_group=report.duplicate_group.astype(np.int32),
        outlier_score=outlier_N.numpy(),
    )
