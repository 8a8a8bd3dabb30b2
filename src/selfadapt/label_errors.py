"""Likely label errors, for people who have features or predictions already.

    from selfadapt import find_label_errors
    report = find_label_errors(labels, features=features)
    print(report.summary)
    report.to_csv("labels.csv")

With `features` two predictors are cross-fitted (cross_fit.py). With `pred_probs`, out-of-sample
predictions of another model, nothing is fitted: the same noise model and the same judgement are applied to them.

Shapes: N samples, F features, K classes.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from selfadapt.data.duplicates.groups import find_duplicates, joined_groups, separable_groups, single_image_classes
from selfadapt.evaluation.label_errors.checked_input import (
    Array,
    checked_labels,
    checked_table,
    coded_labels,
    group_codes,
)
from selfadapt.evaluation.label_errors.out_of_sample import judge_out_of_sample
from selfadapt.evaluation.label_errors.outliers import outlier_scores
from selfadapt.evaluation.label_errors.report import LabelErrorReport, Samples, report_of
from selfadapt.objectives.cross_fitting.cross_fit import (
    FOLDS,
    LEAST_SAMPLES,
    CrossFitted,
    check_enough,
    check_features,
    check_spread,
    cross_fit,
    deal_assignments,
)
from selfadapt.objectives.cross_fitting.nested_heads import CrossFitting
from selfadapt.objectives.cross_fitting.noise_model import noise_of

__all__ = ["LabelErrorReport", "find_label_errors"]


def find_label_errors(
    labels: Any,
    features: Any = None,
    pred_probs: Any = None,
    groups: Any = None,
    *,
    ids: Sequence[str] | None = None,
    class_names: Sequence[Any] | None = None,
    duplicates: Sequence[Sequence[int]] | None = None,
    seed: int = 0,
) -> LabelErrorReport:
    """Judge every label, by `features` (N×F) or out-of-sample `pred_probs` (N×K).

    `groups` names what must not be split among folds (patient, video). `class_names` are those of the columns of
    `pred_probs`; without them the columns stand for the sorted labels. `duplicates` are groups of positions that show
    the same thing; without them they are looked for among the features.
    """
    if (features is None) == (pred_probs is None):
        raise ValueError("pass either features= (N×F) or pred_probs= (N×K, out of sample)")
    given_N = checked_labels(labels)
    count = len(given_N)
    if count < LEAST_SAMPLES:
        raise ValueError(f"{count} samples are too few to judge labels; pass at least {LEAST_SAMPLES}")
    by_features = pred_probs is None
    values_NX = checked_table(features if by_features else pred_probs, count, probabilities=not by_features)
    names, labels_N = coded_labels(given_N, class_names, None if by_features else values_NX.shape[1])
    if ids is not None and len(ids) != count:
        raise ValueError(f"there are {count} labels but {len(ids)} ids")
    id_N = np.array([str(name) for name in (range(count) if ids is None else ids)])
    index = getattr(labels, "index", None)
    index = index if hasattr(index, "__len__") else (None if ids is None else list(ids))
    samples = Samples(names, id_N, index, _checked(duplicates or [], count))
    if by_features:
        return fit_and_judge(values_NX, labels_N, samples, groups, seed, look=duplicates is None)[1]
    check_enough(labels_N)
    fold_N = deal_assignments(values_NX, labels_N, seed, *_together(samples, groups, labels_N))[0]
    predicted_NK = values_NX / values_NX.sum(1, keepdim=True)
    noise = noise_of(predicted_NK, labels_N, fold_N)
    return _judged(predicted_NK, noise.sharpened(predicted_NK), labels_N, noise.matrix_KK, samples)


def fit_and_judge(
    features_NF: Tensor,
    labels_N: Tensor,
    samples: Samples,
    groups: Any,
    seed: int,
    settings: CrossFitting | None = None,
    *,
    look: bool = True,
) -> tuple[CrossFitted, LabelErrorReport]:
    """Cross-fit to labels 0, 1, … and judge them. `look` looks for duplicates among the features first."""
    check_enough(labels_N)
    check_features(features_NF)
    if look:
        samples = replace(samples, duplicates=[group.members for group in find_duplicates(features_NF)])
    fold_RN = deal_assignments(features_NF, labels_N, seed, *_together(samples, groups, labels_N))
    for fold_N in fold_RN:
        check_spread(labels_N, fold_N, [str(name) for name in samples.names])
    fitted = cross_fit(features_NF, labels_N, fold_RN, len(samples.names), settings)
    return fitted, _judged(features_NF, fitted.predicted_NK, labels_N, fitted.noise.matrix_KK, samples)


def _judged(
    seen_NX: Tensor, predicted_NK: Tensor, labels_N: Tensor, matrix_KK: Tensor, samples: Samples
) -> LabelErrorReport:
    """The report. Outliers are found by `seen_NX`: features, or the predictions."""
    unjudged_K = single_image_classes(samples.duplicates, labels_N, len(samples.names))
    found = judge_out_of_sample(predicted_NK, labels_N, matrix_KK, samples.duplicates, unjudged_K=unjudged_K)
    return report_of(found, labels_N, samples, outlier_scores(seen_NX, predicted_NK, found.suggested_N), matrix_KK)


def _checked(duplicates: Sequence[Sequence[int]], count: int) -> Sequence[Sequence[int]]:
    for group in duplicates:
        if len(set(group)) < 2 or min(group) < 0 or max(group) >= count:
            raise ValueError(f"duplicates= holds {list(group)}; a group is two or more positions from 0 to {count - 1}")
    return duplicates


def _together(samples: Samples, groups: Any, labels_N: Tensor) -> tuple[Tensor, int]:
    """A number for what must share a fold: duplicates, and members of one group. And the number of folds."""
    groups_N = separable_groups(samples.duplicates, labels_N, [str(name) for name in samples.names])
    if groups is not None:
        groups_N = joined_groups(groups_N, group_codes(groups, len(labels_N)))
    apart = len(groups_N.unique())
    if apart < 3:
        raise ValueError(f"the samples fall into {apart} groups; there must be at least three to hold some out")
    return groups_N, min(FOLDS, apart)


def blank_samples(names: Array, count: int) -> Samples:
    """Samples of which nothing is known but their number."""
    return Samples(names, np.arange(count).astype(str), None, [])
