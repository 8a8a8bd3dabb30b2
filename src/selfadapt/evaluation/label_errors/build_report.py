"""Reports on label errors from tensors, and from other reports.

Shapes: N samples, K classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfadapt.evaluation.label_errors.duplicate_evidence import group_of_each
from selfadapt.evaluation.label_errors.list_quality import ListQuality, expected_quality
from selfadapt.evaluation.label_errors.report import PER_SAMPLE, LabelErrorReport


def new_report(
    labels_N: Tensor,
    num_classes: int,
    *,
    suggested_N: Tensor,
    runner_up_N: Tensor,
    is_error_N: Tensor,
    p_wrong_N: Tensor,
    confidence_N: Tensor,
    weight_N: Tensor,
    rank_score_N: Tensor | None = None,
    duplicates: Sequence[Sequence[int]] = (),
    too_few_K: Tensor | None = None,
    quality: ListQuality | None = None,
    noise_matrix_KK: Tensor | None = None,
) -> LabelErrorReport:
    """A report on labels 0, 1, … of one split. Set names, ids and outlier scores with `dataclasses.replace`.

    Samples are ranked by P(wrong) without a `rank_score_N`. Without `quality`, it is estimated from P(wrong), with the
    likely errors as the upper bound.
    """
    count, judged_N = len(labels_N), p_wrong_N.isfinite()
    p_wrong_n = p_wrong_N[judged_N]
    return LabelErrorReport(
        class_names=np.arange(num_classes),
        given_codes=labels_N.numpy(),
        suggested_codes=suggested_N.numpy(),
        runner_up_codes=runner_up_N.numpy(),
        predicted_codes=np.full(count, -1),
        is_error=is_error_N.numpy(),
        p_wrong=p_wrong_N.numpy(),
        rank_score=(p_wrong_N if rank_score_N is None else rank_score_N).numpy(),
        confidence=confidence_N.numpy(),
        sample_weight=weight_N.numpy(),
        outlier_score=np.full(count, np.nan, np.float32),
        duplicate_group=group_of_each(duplicates, count).numpy(),
        in_conflict=in_conflict(labels_N, duplicates).numpy(),
        too_few=np.zeros(num_classes, bool) if too_few_K is None else too_few_K.numpy(),
        quality=quality or expected_quality(p_wrong_n, p_wrong_n, is_error_N[judged_N]),
        ids=np.arange(count).astype(str),
        index=None,
        noise_matrix=None if noise_matrix_KK is None else noise_matrix_KK.numpy(),
        paths=np.full(count, ""),
        split_names=("train",),
        split_codes=np.zeros(count, np.int8),
    )


def in_conflict(labels_N: Tensor, duplicates: Sequence[Sequence[int]]) -> Tensor:
    """True for samples that have a duplicate with another label."""
    conflict_N = torch.zeros(len(labels_N), dtype=torch.bool)
    for group in duplicates:
        conflict_N[list(group)] = len(labels_N[list(group)].unique()) > 1
    return conflict_N


def expand(found: LabelErrorReport, labels_N: Tensor, judged_n: Tensor) -> LabelErrorReport:
    """The report on all labels, from the one on the judged samples. The others keep their labels and rank last."""
    if len(judged_n) == len(labels_N):
        return found
    ones_N = torch.ones(len(labels_N))
    blank = new_report(
        labels_N,
        len(found.class_names),
        suggested_N=labels_N,
        runner_up_N=torch.full_like(labels_N, -1),
        is_error_N=torch.zeros(len(labels_N), dtype=torch.bool),
        p_wrong_N=torch.nan * ones_N,
        rank_score_N=-ones_N,
        confidence_N=ones_N / 2,
        weight_N=ones_N,
        quality=found.quality,
    )
    names = ("suggested_codes", "runner_up_codes", "is_error", "p_wrong", "rank_score", "confidence", "sample_weight")
    columns = {name: getattr(blank, name).copy() for name in names}
    for name, column_N in columns.items():
        column_N[judged_n.numpy()] = getattr(found, name)
    return replace(blank, **columns)


def join_splits(reports: Mapping[str, LabelErrorReport]) -> LabelErrorReport:
    """One report on several splits. Estimates are those of the first."""
    first, sizes = next(iter(reports.values())), [len(own) for own in reports.values()]
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(own, name) for own in reports.values()]) for name in PER_SAMPLE
    }
    columns["split_codes"] = np.repeat(np.arange(len(sizes), dtype=np.int8), sizes)
    return replace(first, **columns, split_names=tuple(reports))
