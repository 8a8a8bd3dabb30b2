"""Find label errors from features or predictions, without a run.

    from selfadapt import find_label_errors
    report = find_label_errors(labels, features=features)
    print(report.summary)
    report.to_csv("labels.csv")

With `features`, two predictors are cross-fitted (objectives/cross_fitting/cross_fit.py), in passes over shards if there
are many samples (objectives/cross_fitting/streamed). With `pred_probs`, out-of-sample predictions of another model,
nothing is fitted: the same noise model and the same rule are applied to them.

Shapes: N samples, F features, K classes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import index as as_position
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfadapt.data.duplicates.groups import find_duplicates, joined_groups, separable_groups, single_image_classes
from selfadapt.data.forms.frames import package_of
from selfadapt.data.shards.feature_shards import FeatureShards
from selfadapt.data.shards.passes import PassProgress, no_pass_progress
from selfadapt.evaluation.label_errors.checked_input import (
    Array,
    check_columns,
    checked_labels,
    checked_table,
    coded_labels,
    group_codes,
    index_of,
    named_columns,
    plain,
)
from selfadapt.evaluation.label_errors.feature_map import FeatureMap
from selfadapt.evaluation.label_errors.large_features import aligned_to, judge_shards
from selfadapt.evaluation.label_errors.out_of_sample import judge_out_of_sample
from selfadapt.evaluation.label_errors.outliers import outlier_scores
from selfadapt.evaluation.label_errors.report import PER_SAMPLE, LabelErrorReport
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
from selfadapt.objectives.cross_fitting.streamed.streamed_fit import is_streamed

__all__ = ["LabelErrorReport", "find_label_errors"]


def find_label_errors(
    labels: Any = None,
    features: Any = None,
    pred_probs: Any = None,
    groups: Any = None,
    *,
    ids: Sequence[str] | None = None,
    class_names: Sequence[Any] | None = None,
    duplicates: Sequence[Sequence[int]] | None = None,
    samples: Sequence[Any] | None = None,
    seed: int = 0,
    on_pass: PassProgress = no_pass_progress,
) -> LabelErrorReport:
    """Find likely label errors from features or from out-of-sample predictions.

    With `features`, two softmax predictors are cross-fitted. With `pred_probs`, nothing is fitted.

    Features may be larger than memory: pass a path or a memory-mapped array. From 50,000 samples on (or 256 MB of
    features, or if there are many classes), they are read in blocks in a few passes, and memory hardly grows with
    their number. In a group of processes (torchrun), call it in all of them with the same arguments; they share the
    passes and return the same report.

    Args:
        labels: The given label of each sample, a class name or an integer, of length N: a list, an array, a tensor or a
            pandas or polars Series; `to_frame` keeps the index of pandas. Default: the labels in the feature shards.
        features: Numbers that describe each sample, such as embeddings, of shape (N, F): an array, a pandas or polars
            frame with columns of numbers and categories, where values may be missing, the path of a .npy, .npz or
            .parquet file or of a folder of them (as written by `selfadapt embed`), or an iterator over arrays. Pass
            this or `pred_probs`.
        pred_probs: Out-of-sample predicted probabilities of shape (N, K), for example from cross-validation.
        groups: Group of each sample (patient, video), of length N. A group is never split among folds.
        ids: Identifier of each sample for the report. If the feature shards hold ids, samples are matched by id,
            otherwise by position. Default: the ids in the shards, else the index of pandas, else the positions.
        class_names: Classes in the order of the columns of `pred_probs`. Default: the columns of a frame that are named
            after the classes; otherwise the sorted labels, or 0 to K - 1 for integer labels within that range.
        duplicates: Groups of samples that are duplicates, by position. Default: found among the features.
        samples: What to show of each sample in a notebook: the path of an image file, an image (Pillow, array or
            tensor), or a text.
        seed: Seed of the assignment to folds.
        on_pass: Called with the name of a pass over large features, the number of samples done, and the total.

    Returns:
        A `LabelErrorReport` with one value for each label, in the order of `labels`.

    Raises:
        ValueError: If both or neither of `features` and `pred_probs` are passed, if shapes do not match, if values are
            missing or not finite, or if there are too few samples or classes to judge labels.

    Examples:
        >>> report = find_label_errors(labels, features=embeddings)
        >>> print(report.summary)
        >>> report.ranked_indices[:10]  # look at these first
        >>> report.to_frame().head()
    """
    if (features is None) == (pred_probs is None):
        raise ValueError("pass either features= (N×F) or pred_probs= (N×K, out of sample)")
    labels, features, pred_probs, groups = map(plain, (labels, features, pred_probs, groups))
    shards = _shards(features)
    if labels is None and (labels := None if shards is None else shards.column("labels")) is None:
        raise ValueError("pass labels=, one for each sample")
    given_N = checked_labels(labels)
    count = len(given_N)
    if count < LEAST_SAMPLES:
        raise ValueError(f"{count} samples are too few to judge labels; pass at least {LEAST_SAMPLES}")
    if samples is not None and len(samples) != count:
        raise ValueError(f"there are {count} labels but {len(samples)} samples")
    ids = None if ids is None else list(ids)
    if ids is not None and len(ids) != count:
        raise ValueError(f"there are {count} labels but {len(ids)} ids")
    known = None if duplicates is None else _checked(duplicates, count)
    index = index_of(labels)
    id_N = _ids(ids, shards, index, count)
    index = ids if index is None else index
    by_features = pred_probs is None
    if by_features:
        names, labels_N = coded_labels(given_N, class_names, None)
        if package_of(features) is not None:
            features = checked_table(features, count, probabilities=False)
        shards = shards or _large_table(features, count, len(names))
    if shards is not None:
        row_N = aligned_to(shards, ids, count)
        if is_streamed(count, shards.dimensions, len(names)):
            report = _judge_in_order(shards, labels_N, names, groups, id_N, seed, known, row_N, on_pass)
            return replace(report, ids=id_N, index=index, samples=samples)
        features = shards.read(slice(0, count))
        bad_n = (~features.isfinite()).any(1).nonzero().flatten()
        if len(bad_n):
            raise ValueError(shards.not_finite(len(bad_n), int(bad_n[0])))
        features = features if row_N is None else features[row_N]
    values_NX = checked_table(features if by_features else pred_probs, count, probabilities=not by_features)
    if by_features:
        report = fit_and_judge(values_NX, labels_N, names, groups, seed, duplicates=known)[1]
    else:
        classes = named_columns(pred_probs, given_N) if class_names is None else class_names
        names, labels_N = coded_labels(given_N, classes, values_NX.shape[1])
        check_enough(labels_N)
        if class_names is None:
            check_columns(values_NX, labels_N)
        known = known or []
        fold_N = deal_assignments(values_NX, labels_N, seed, *_together(known, groups, labels_N, names))[0]
        predicted_NK = values_NX / values_NX.sum(1, keepdim=True)
        noise = noise_of(predicted_NK, labels_N, fold_N)
        report = _judged(predicted_NK, noise.sharpened(predicted_NK), labels_N, noise.matrix_KK, names, known)
    return replace(report, ids=id_N, index=index, samples=samples)


def _shards(features: Any) -> FeatureShards | None:
    """Features in files or from an iterator; None for a table in memory."""
    return FeatureShards.of(features) if isinstance(features, str | Path | FeatureShards | Iterator) else None


def _large_table(features: Any, count: int, num_classes: int) -> FeatureShards | None:
    """An array as shards, if it is large enough to be read in blocks; otherwise None."""
    shape: Sequence[int] = getattr(features, "shape", ())
    large = len(shape) == 2 and shape[0] == count and is_streamed(count, shape[1], num_classes)
    return FeatureShards.of(features) if large else None


def _ids(ids: Sequence[str] | None, shards: FeatureShards | None, index: Any, count: int) -> Array:
    """The given ids, else those of the shards, else the index of the labels, else the positions."""
    found = ids if ids is not None or shards is None else shards.column("ids")
    found = index if found is None else found
    if found is None:
        return np.arange(count).astype(f"U{len(str(count))}")
    return np.array([str(name) for name in found])


def _judge_in_order(
    shards: FeatureShards,
    labels_N: Tensor,
    names: Array,
    groups: Any,
    id_N: Array,
    seed: int,
    duplicates: Sequence[Sequence[int]] | None,
    row_N: Tensor | None,
    on_pass: PassProgress,
) -> LabelErrorReport:
    """Judge labels that may be ordered differently from the shards: `row_N` is the row of each label, if so."""
    if row_N is None:
        report = judge_shards(shards, labels_N, names, groups, id_N, seed, duplicates=duplicates, on_pass=on_pass)
        return replace(report, class_names=names)
    label_N = row_N.argsort()
    rows = row_N.tolist()
    report = judge_shards(
        shards,
        labels_N[label_N],
        names,
        None if groups is None else group_codes(groups, len(row_N))[label_N],
        id_N[label_N.numpy()],
        seed,
        duplicates=None if duplicates is None else [[rows[position] for position in group] for group in duplicates],
        on_pass=on_pass,
    )
    columns = {name: getattr(report, name)[row_N.numpy()] for name in PER_SAMPLE}
    return replace(report, **columns, class_names=names)


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
    """Cross-fit to labels, as codes of these names, and judge them. Duplicates are found among the features if None."""
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
    """Return the report. Outliers are found among `vectors_NX`, the features or the predictions."""
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
    """Number the sets of samples that must share a fold (duplicates, members of a group), and count the folds."""
    groups_N = separable_groups(duplicates, labels_N, [str(name) for name in names])
    if groups is not None:
        groups_N = joined_groups(groups_N, group_codes(groups, len(labels_N)))
    count = len(groups_N.unique())
    if count < 3:
        raise ValueError(f"the samples fall into {count} groups; there must be at least three to hold some out")
    return groups_N, min(FOLDS, count)
