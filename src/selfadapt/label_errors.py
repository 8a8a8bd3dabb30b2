"""Likely label errors, for people who have features or predictions already.

    from selfadapt import find_label_errors
    report = find_label_errors(labels, features=features)
    print(report.summary)
    report.to_csv("labels.csv")

With `features` two predictors are cross-fitted (cross_fit.py). With `pred_probs`, out-of-sample
predictions of another model, nothing is fitted: the same noise model and the same rule are applied to them.

Shapes: N samples, F features, K classes.
"""

from collections.abc import Sequence
from dataclasses import replace
from operator import index as as_position
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfadapt.data.duplicates.groups import find_duplicates, joined_groups, separable_groups, single_image_classes
from selfadapt.evaluation.label_errors.checked_input import (
    Array,
    check_columns,
    checked_labels,
    checked_table,
    coded_labels,
    group_codes,
    index_of,
)
from selfadapt.evaluation.label_errors.feature_map import FeatureMap
from selfadapt.evaluation.label_errors.out_of_sample import judge_out_of_sample
from selfadapt.evaluation.label_errors.outliers import outlier_scores
from selfadapt.evaluation.label_errors.report import LabelErrorReport
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
    samples: Sequence[Any] | None = None,
    seed: int = 0,
) -> LabelErrorReport:
    """Find likely label errors from features or from out-of-sample predictions.

    With `features`, two softmax predictors are cross-fitted. With `pred_probs`, nothing is fitted.

    Args:
        labels: The given label of each sample, class names or integers, of length N: a list, an array, a tensor or a
            Series of pandas or polars. The index of pandas becomes the id, and `to_frame` keeps it.
        features: Numbers that describe each sample, such as embeddings, of shape (N, F), or a frame of pandas or polars
            with columns of numbers and categories. Pass this or `pred_probs`.
        pred_probs: Out-of-sample predicted probabilities of shape (N, K), for example from cross-validation.
        groups: Group of each sample (patient, video), of length N. A group is never split among folds.
        ids: Identifier of each sample for the report. Default: its index in pandas, else its position.
        class_names: Classes in the order of the columns of `pred_probs`. Default: the sorted labels, or 0 to K - 1 for
            integer labels within that range.
        duplicates: Groups of positions that show the same thing. Default: found among the features.
        samples: What a notebook shows of each sample: paths of image files, images (of Pillow, arrays or tensors), or
            texts.
        seed: Seed of the assignment to folds.

    Returns:
        A `LabelErrorReport` with one value for each label, in the order of `labels`.

    Raises:
        ValueError: If both or neither of `features` and `pred_probs` are passed, if shapes do not match, if values are
            missing or not finite, or if there are too few samples or classes to judge labels.

    Example:
        >>> report = find_label_errors(labels, features=embeddings)
        >>> print(report.summary)
        >>> report.ranked_indices[:10]  # look at these first
        >>> report.to_frame().head()
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
    ids = None if ids is None else list(ids)
    if ids is not None and len(ids) != count:
        raise ValueError(f"there are {count} labels but {len(ids)} ids")
    if samples is not None and len(samples) != count:
        raise ValueError(f"there are {count} labels but {len(samples)} samples")
    index = index_of(labels)
    id_N = np.array([str(name) for name in (ids if ids is not None else range(count) if index is None else index)])
    index = ids if index is None else index
    if by_features:
        known = None if duplicates is None else _checked(duplicates, count)
        report = fit_and_judge(values_NX, labels_N, names, groups, seed, duplicates=known)[1]
    else:
        check_enough(labels_N)
        if class_names is None:
            check_columns(values_NX, labels_N)
        known = _checked(duplicates or [], count)
        fold_N = deal_assignments(values_NX, labels_N, seed, *_together(known, groups, labels_N, names))[0]
        predicted_NK = values_NX / values_NX.sum(1, keepdim=True)
        noise = noise_of(predicted_NK, labels_N, fold_N)
        report = _judged(predicted_NK, noise.sharpened(predicted_NK), labels_N, noise.matrix_KK, names, known)
    return replace(report, ids=id_N, index=index, samples=samples)


def fit_and_judge(
    features_NF: Tensor,
    labels_N: Tensor,
    names: Array,
    groups: Any,
    seed: int,
    settings: CrossFitting | None = None,
    *,
    duplicates: Sequence[Sequence[int]] | None = None,
) -> tuple[CrossFitted, LabelErrorReport]:
    """Cross-fit to labels 0, 1, … of these names and judge them. Finds duplicates among the features if None."""
    check_enough(labels_N)
    check_features(features_NF)
    if duplicates is None:
        duplicates = [group.members for group in find_duplicates(features_NF)]
    fold_RN = deal_assignments(features_NF, labels_N, seed, *_together(duplicates, groups, labels_N, names))
    for fold_N in fold_RN:
        check_spread(labels_N, fold_N, [str(name) for name in names])
    fitted = cross_fit(features_NF, labels_N, fold_RN, len(names), settings)
    report = _judged(features_NF, fitted.predicted_NK, labels_N, fitted.noise.matrix_KK, names, duplicates)
    return fitted, replace(report, feature_map=FeatureMap.of(features_NF, report.is_error))


def _judged(
    vectors_NX: Tensor,
    predicted_NK: Tensor,
    labels_N: Tensor,
    matrix_KK: Tensor,
    names: Array,
    duplicates: Sequence[Sequence[int]],
) -> LabelErrorReport:
    """The report. Outliers are found among `vectors_NX`: the features, or the predictions."""
    unjudged_K = single_image_classes(duplicates, labels_N, len(names))
    found = judge_out_of_sample(predicted_NK, labels_N, matrix_KK, duplicates, unjudged_K=unjudged_K)
    score_N = outlier_scores(vectors_NX, predicted_NK, torch.from_numpy(found.suggested_codes))
    return replace(found, class_names=names, outlier_score=score_N.numpy())


def _checked(duplicates: Sequence[Sequence[int]], count: int) -> Sequence[Sequence[int]]:
    try:
        groups = [[as_position(position) for position in group] for group in duplicates]
    except TypeError as error:
        raise ValueError(f"duplicates= must be lists of positions, such as [[0, 7], [3, 4, 9]]: {error}") from None
    for group in groups:
        if len(set(group)) < 2 or min(group) < 0 or max(group) >= count:
            raise ValueError(f"duplicates= holds {group}; a group is two or more positions from 0 to {count - 1}")
    return groups


def _together(duplicates: Sequence[Sequence[int]], groups: Any, labels_N: Tensor, names: Array) -> tuple[Tensor, int]:
    """A number for what must share a fold, duplicates and members of one group; and the number of folds."""
    groups_N = separable_groups(duplicates, labels_N, [str(name) for name in names])
    if groups is not None:
        groups_N = joined_groups(groups_N, group_codes(groups, len(labels_N)))
    apart = len(groups_N.unique())
    if apart < 3:
        raise ValueError(f"the samples fall into {apart} groups; there must be at least three to hold some out")
    return groups_N, min(FOLDS, apart)
