"""The report on label errors: one value for each label in the order of the input, a ranking into it, and a summary.

Shapes: N samples, K classes.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from selfadapt.atomic_files import whole_file
from selfadapt.evaluation.label_errors.duplicate_evidence import group_of_each
from selfadapt.evaluation.label_errors.list_quality import Interval, ListQuality
from selfadapt.evaluation.label_errors.out_of_sample import Judgements

Array = np.ndarray[Any, np.dtype[Any]]
REASONS = ("", "prediction", "duplicate", "outlier")
_NAMED = 10  # classes that are too small to be judged
_FAR = 0.9  # outlier score from which no class fits


class LabelErrorRow(NamedTuple):
    """A row of the table, by the column names of labels.csv."""

    id: str
    given: str
    suggested: str
    p_wrong: float
    confidence: float
    weight: float
    suspect: int
    outsider: float
    runner_up: str
    duplicate_group: int | str
    reason: str


@dataclass(frozen=True)
class ClassSummary:
    """What was found in one class, as it is given."""

    name: str
    given: int
    judged_wrong: int
    too_few: bool  # to judge any of its labels


@dataclass(frozen=True)
class LabelErrorSummary:
    """Figures of the report. Prints as a paragraph."""

    samples: int
    errors: int
    error_rate: Interval
    precision: Interval | None  # of the likely errors; None without any
    recall: Interval | None
    quality: ListQuality  # at each depth of the list
    duplicate_groups: tuple[tuple[str, ...], ...]
    conflicting_groups: int  # duplicates with different labels
    classes: tuple[ClassSummary, ...]
    noise_matrix: Array  # K×K: the probability of each given label for each true class

    def __str__(self) -> str:
        rate, few = self.error_rate, [row for row in self.classes if row.too_few]
        judged = f"{self.samples} labels" if not few else f"the {self.judged} labels that could be judged"
        text = [
            f"{self.errors} of {judged} are likely errors; an estimated {rate.value:.1%}{' of these' if few else ''} "
            f"are wrong (between {rate.low:.1%} and {rate.high:.1%})."
        ]
        if self.precision is not None and self.recall is not None:
            text.append(f"Expected precision {self.precision}, expected recall {self.recall}.")
        if self.duplicate_groups:
            text.append(
                f"There are {len(self.duplicate_groups)} groups of duplicates, "
                f"{self.conflicting_groups} of them with different labels."
            )
        if few:
            more = f" and {len(few) - _NAMED} more classes" if len(few) > _NAMED else ""
            text.append(f"Too few samples to judge: {', '.join(row.name for row in few[:_NAMED])}{more}.")
        return " ".join(text)

    @property
    def judged(self) -> int:
        """Labels of classes with enough samples to judge them."""
        return self.samples - sum(row.given for row in self.classes if row.too_few)


@dataclass(frozen=True)
class LabelErrorReport:
    """A judgement of each label. Every array is in the order of the input."""

    is_error: Array  # the likely errors
    ranked_indices: Array  # most likely wrong first; all errors before all others
    p_wrong: Array  # the probability that the label is wrong
    given_labels: Array
    suggested_labels: Array  # the given label unless it is a likely error
    runner_up_labels: Array  # the likeliest class but the suggested one
    confidence: Array  # the probability of the suggested label
    sample_weight: Array  # for training: the largest entry of a sample's target
    outlier_score: Array  # 0 (usual) to 1 (no class fits)
    duplicate_group: Array  # the number of its group of duplicates; -1 without duplicates
    reason: Array  # of an error "prediction" or "duplicate", of others "outlier" or ""
    ids: Array
    index: Any  # of the caller's labels, for `to_frame`
    summary: LabelErrorSummary

    def __len__(self) -> int:
        return len(self.given_labels)

    def __repr__(self) -> str:
        return f"LabelErrorReport: {self.summary}"

    def rows(self) -> Iterator[LabelErrorRow]:
        """The table, most likely wrong first."""
        for i in self.ranked_indices.tolist():
            group = int(self.duplicate_group[i])
            yield LabelErrorRow(
                id=str(self.ids[i]),
                given=str(self.given_labels[i]),
                suggested=str(self.suggested_labels[i]),
                p_wrong=float(self.p_wrong[i]),
                confidence=float(self.confidence[i]),
                weight=float(self.sample_weight[i]),
                suspect=int(self.is_error[i]),
                outsider=float(self.outlier_score[i]),
                runner_up=str(self.runner_up_labels[i]),
                duplicate_group=group if group >= 0 else "",
                reason=str(self.reason[i]),
            )

    def to_csv(self, path: str | Path) -> None:
        """Write the table, sorted by rank."""
        with whole_file(Path(path)) as file:
            writer = csv.writer(file)
            writer.writerow(LabelErrorRow._fields)
            for row in self.rows():
                writer.writerow([f"{value:.6f}" if isinstance(value, float) else value for value in row])

    def to_frame(self) -> Any:
        """A pandas DataFrame with the index of the labels, sorted by rank; needs pandas."""
        import pandas

        columns = {
            "given_label": self.given_labels,
            "suggested_label": self.suggested_labels,
            "p_wrong": self.p_wrong,
            "is_error": self.is_error,
            "confidence": self.confidence,
            "runner_up_label": self.runner_up_labels,
            "reason": self.reason,
            "sample_weight": self.sample_weight,
            "outlier_score": self.outlier_score,
            "duplicate_group": self.duplicate_group,
        }
        return pandas.DataFrame(columns, index=self.index).iloc[self.ranked_indices]


@dataclass(frozen=True)
class Samples:
    """What the caller knows of the samples: class names, an id for each sample, an index, and duplicates."""

    names: Array
    ids: Array
    index: Any
    duplicates: Sequence[Sequence[int]]


def report_of(
    found: Judgements, labels_N: Tensor, samples: Samples, outlier_score_N: Tensor, matrix_KK: Tensor
) -> LabelErrorReport:
    """The report on judgements of labels 0, 1, …"""
    names = samples.names
    return LabelErrorReport(
        is_error=found.is_error_N.numpy(),
        ranked_indices=found.ranked_n.numpy(),
        p_wrong=found.p_wrong_N.numpy(),
        given_labels=names[labels_N.numpy()],
        suggested_labels=names[found.suggested_N.numpy()],
        runner_up_labels=names[found.runner_up_N.numpy()],
        confidence=found.confidence_N.numpy(),
        sample_weight=found.weight_N.numpy(),
        outlier_score=outlier_score_N.numpy(),
        duplicate_group=group_of_each(samples.duplicates, len(labels_N)).numpy(),
        reason=np.array(reasons(found.is_error_N, outlier_score_N, labels_N, samples.duplicates)),
        ids=samples.ids,
        index=samples.index,
        summary=_summary(found, labels_N, samples, matrix_KK),
    )


def reasons(
    is_error_N: Tensor, outlier_score_N: Tensor, labels_N: Tensor, duplicates: Sequence[Sequence[int]]
) -> list[str]:
    """Why each sample deserves a look, in one word."""
    conflict_N = torch.zeros_like(is_error_N)
    for group in duplicates:
        conflict_N[list(group)] = len(labels_N[list(group)].unique()) > 1
    outlier_N = outlier_score_N > _FAR
    code_N = torch.where(is_error_N, torch.where(conflict_N, 2, 1), torch.where(outlier_N, 3, 0))
    return [REASONS[code] for code in code_N.tolist()]


def _summary(found: Judgements, labels_N: Tensor, samples: Samples, matrix_KK: Tensor) -> LabelErrorSummary:
    errors = int(found.is_error_N.sum())
    precision, recall = found.quality.at(errors) if errors else (None, None)
    given_K = torch.bincount(labels_N, minlength=len(samples.names)).tolist()
    wrong_K = torch.bincount(labels_N[found.is_error_N], minlength=len(samples.names)).tolist()
    rows = zip(samples.names, given_K, wrong_K, found.few_K.tolist(), strict=True)
    return LabelErrorSummary(
        samples=len(labels_N),
        errors=errors,
        error_rate=found.quality.noise_rate,
        precision=precision,
        recall=recall,
        quality=found.quality,
        duplicate_groups=tuple(tuple(samples.ids[list(group)].tolist()) for group in samples.duplicates),
        conflicting_groups=sum(len(labels_N[list(group)].unique()) > 1 for group in samples.duplicates),
        classes=tuple(ClassSummary(str(name), given, wrong, few) for name, given, wrong, few in rows),
        noise_matrix=matrix_KK.numpy(),
    )
