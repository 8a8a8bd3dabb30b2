"""The figures of an audit, whatever was audited: those that are shown everywhere, and the comparison with the truth."""

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from selfadapt.evaluation.classification import accuracy
from selfadapt.evaluation.label_errors.list_quality import Interval
from selfadapt.evaluation.label_errors.recovery import average_precision
from selfadapt.evaluation.label_errors.report import LabelErrorReport
from selfadapt.review.statistics.label_figures import LabelFigures, Share

MOST_CLASSES = 1000  # up to which the probability of every pair of classes is written


def audit_summary(
    train: LabelErrorReport, figures: LabelFigures | None, duplicates: int, truth_N: Tensor | None
) -> dict[str, Any]:
    """Return the figures of the training split and of each split, and the comparison with the truth where it is known.

    Args:
        train: The report on the training split.
        figures: Those of all splits; None in a process that does not report.
        duplicates: Number of groups of duplicates.
        truth_N: True class of each training sample.
    """
    judged_N, is_error_N = train.is_judged, train.is_error
    errors, quality = int(is_error_N.sum()), train.quality
    summary: dict[str, Any] = {
        "suspects": errors,
        **({} if figures is None else _expected(figures, train)),
        "not_judged": int((~judged_N).sum()),
        "duplicates": duplicates,
        "classes": [
            {"class": own.name, "given": own.given, "judged_wrong": own.judged_wrong, "too_few": own.too_few}
            for own in train.summary.classes
        ],
    }
    if truth_N is not None:
        wrong_N = (train.given_codes != truth_N.numpy()) & judged_N
        caught, wrong = int((is_error_N & wrong_N).sum()), int(wrong_N.sum())
        ranked = train.ranked_indices
        summary |= {
            "wrong": wrong,
            "precision": caught / errors if errors else None,
            "recall": caught / wrong if wrong else None,
            "recovery": accuracy(
                torch.from_numpy(train.suggested_codes[judged_N]), truth_N[torch.from_numpy(judged_N)]
            ),
            "average_precision": average_precision(
                torch.from_numpy(ranked[judged_N[ranked]]), torch.from_numpy(wrong_N)
            ),
        }
    if train.is_calibrated:
        summary["quality"] = [
            {"depth": depth, "precision": asdict(precision), "recall": asdict(recall)}
            for depth, precision, recall in zip(quality.depths, quality.precision, quality.recall, strict=True)
        ]
    return summary


def _expected(figures: LabelFigures, train: LabelErrorReport) -> dict[str, Any]:
    """The figures that are shown everywhere (label_figures.py), with the audit's intervals until a review has some."""
    own, expected = figures.splits[0], train.summary
    calibrated = train.is_calibrated
    return {
        **_interval("estimated_noise_rate", own.error_rate, expected.error_rate if calibrated else None),
        **_interval("expected_precision", own.precision, expected.precision if calibrated else None),
        **_interval("expected_recall", own.recall, expected.recall if calibrated else None),
        "parts": {
            split.split: {"labels": split.labels, "suspects": split.likely_errors, **split.to_json()}
            for split in figures.splits
        },
        "summary": " ".join(figures.sentences),
    }


def _interval(name: str, share: Share | None, expected: Interval | None) -> dict[str, float | None]:
    """A share with its measured interval or, before that, the expected one."""
    if share is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    low, high = share.low, share.high
    if low is None and expected is not None:
        low, high = min(share.value, expected.low), max(share.value, expected.high)
    return {name: share.value, f"{name}_low": low, f"{name}_high": high}
