"""Label errors from features in shards: duplicates, folds, predictions and the report, in passes over the features.

Shapes: N samples, K classes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfadapt.core.errors import UserError
from selfadapt.data.duplicates.feature_cells import duplicates_in_cells
from selfadapt.data.duplicates.groups import joined_groups, separable_groups, single_image_classes
from selfadapt.data.shards.feature_shards import FeatureShards
from selfadapt.data.shards.id_order import drawn_by_hash, folds_by_hash, id_hashes
from selfadapt.data.shards.passes import Passes, PassProgress
from selfadapt.data.shards.scan import scan
from selfadapt.evaluation.label_errors.checked_input import Array, group_codes
from selfadapt.evaluation.label_errors.report import LabelErrorReport
from selfadapt.evaluation.label_errors.streamed_report import judge_streamed
from selfadapt.objectives.cross_fitting.cross_fit import check_enough, check_features
from selfadapt.objectives.cross_fitting.streamed.streamed_fit import (
    SAMPLE,
    STREAMED_FOLDS,
    StreamedFitting,
    sample_size,
)

_KERNEL_WIDTH = 1000  # columns of a table of kernel values


def judge_shards(
    shards: FeatureShards,
    labels_N: Tensor,
    names: Array,
    groups: Any,
    ids: Array,
    seed: int,
    *,
    duplicates: Sequence[Sequence[int]] | None = None,
    on_pass: PassProgress,
) -> LabelErrorReport:
    """Judge labels 0, 1, … of these names, given in the order of the shards."""
    check_enough(labels_N)
    passes = Passes.over(shards, max(len(names), shards.dimensions, _KERNEL_WIDTH), on_pass)
    found = scan(passes)
    check_features(
        torch.stack((found.largest_F, found.mean_F)) if bool(found.std_F.any()) else found.mean_F.repeat(2, 1)
    )
    hash_N = id_hashes((str(own) for own in ids), len(ids), seed)
    if duplicates is None:
        duplicates = [group.members for group in duplicates_in_cells(passes, found, drawn_by_hash(hash_N, SAMPLE))]
    group_N = separable_groups(duplicates, labels_N, [str(name) for name in names])
    if groups is not None:
        group_N = joined_groups(group_N, group_codes(groups, len(labels_N)))
    fold_N = folds_by_hash(hash_N, labels_N, group_N, STREAMED_FOLDS)
    unjudged_K = single_image_classes(duplicates, labels_N, len(names))
    unjudged_K |= _classes_in_one_fold(labels_N, fold_N, len(names))
    sample_s = drawn_by_hash(hash_N, sample_size(shards.dimensions, len(names)))
    del hash_N, group_N
    fit = StreamedFitting(passes, found, labels_N, fold_N, sample_s, len(names)).fit()
    return judge_streamed(fit, labels_N, duplicates, unjudged_K)


def _classes_in_one_fold(labels_N: Tensor, fold_N: Tensor, num_classes: int) -> Tensor:
    """The classes that no other fold shows, because all their samples belong together."""
    cells = torch.bincount(labels_N * STREAMED_FOLDS + fold_N, minlength=num_classes * STREAMED_FOLDS)
    return (cells.view(num_classes, STREAMED_FOLDS) > 0).sum(1) == 1


def aligned_to(shards: FeatureShards, ids: Sequence[str] | None, count: int) -> Tensor | None:
    """The row of each label among the shards, by id; None if labels are in the order of the shards.

    Raises:
        UserError: If labels and shards do not have the same samples.
    """
    if len(shards) != count:
        raise UserError(f"there are {count} labels but {len(shards)} samples in the features; give one label for each")
    in_shards = None if ids is None else shards.column("ids")
    if in_shards is None or ids is None:
        return None
    given, held = np.asarray(ids).astype(str), in_shards.astype(str)
    if np.array_equal(given, held):
        return None
    order, wanted = held.argsort(kind="stable"), given.argsort(kind="stable")
    unequal = held[order] != given[wanted]
    if unequal.any():
        first = unequal.argmax()
        raise UserError(
            f"the labels and the features have different ids, such as {given[wanted][first]!r} and "
            f"{held[order][first]!r}; give each sample of the features one label"
        )
    row_N = np.empty(count, np.int64)
    row_N[wanted] = order
    return torch.from_numpy(row_N)
