"""The report on label errors: one value for each label in the order of the input, a ranking into it, and a summary.

Classes are stored as codes, positions in `class_names`. -1 means unknown, as NaN does in columns of probabilities.

Shapes: N samples, K classes.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from selfadapt.core.atomic_files import atomic_write
from selfadapt.data.forms.frames import corrected_copy, label_spellings, row_ids
from selfadapt.evaluation.label_errors.confusion import transition_matrix
from selfadapt.evaluation.label_errors.list_quality import Interval, ListQuality

if TYPE_CHECKING:
    from selfadapt.evaluation.label_errors.feature_map import FeatureMap

Array = np.ndarray[Any, np.dtype[Any]]
REASONS = np.array(["", "prediction", "duplicate", "outlier"])
_MAX_NAMED = 10  # classes with too few samples that the summary lists
_FAR = 0.9  # outlier score above which no class fits
PER_SAMPLE = (
    "given_codes", "suggested_codes", "runner_up_codes", "predicted_codes", "is_error", "p_wrong", "rank_score",
    "confidence", "sample_weight", "outlier_score", "duplicate_group", "in_conflict", "ids", "paths", "split_codes",
)  # fmt: skip


@dataclass(frozen=True)
class ClassSummary:
    """The labels of one class, counted by the given label."""

    name: str
    given: int
    judged_wrong: int
    too_few: bool  # too few samples to judge any of its labels


@dataclass(frozen=True)
class LabelErrorSummary:
    """Totals and estimates of a report. Prints as a paragraph."""

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
            groups, conflicting = len(self.duplicate_groups), self.conflicting_groups
            found = "is 1 group" if groups == 1 else f"are {groups} groups"
            text.append(f"There {found} of duplicates, {conflicting or 'none'} of them with different labels.")
        if few:
            more = f" and {len(few) - _MAX_NAMED} more classes" if len(few) > _MAX_NAMED else ""
            text.append(f"Too few samples to judge: {', '.join(row.name for row in few[:_MAX_NAMED])}{more}.")
        return " ".join(text)

    @property
    def judged(self) -> int:
        """Labels of classes with enough samples to judge them."""
        return self.samples - sum(row.given for row in self.classes if row.too_few)


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelErrorReport:
    """An assessment of every label, with each array in the order of the input.

    It is what `find_label_errors`, `SelfAdaptiveLoss.label_errors` and `SelfAdaptiveClassifier.label_errors_` give, and
    what `selfadapt audit` writes to labels.csv. The order of a report that is read back from that file is the order of
    the file: most likely wrong first.

    Attributes:
        is_error: True for the likely errors, bool of shape (N,).
        ranked_indices: Positions from most to least likely wrong, all likely errors before all others, of shape (N,).
        p_wrong: Probability that the label is wrong, estimated from out-of-sample predictions. From targets, it is one
            minus the support for the label, which ranks labels but is not calibrated. NaN if the sample could not be
            judged.
        given_labels: The labels as they were passed.
        suggested_labels: The suggested label of a likely error, the given label of every other sample.
        runner_up_labels: The most likely class other than the suggested one.
        confidence: Probability of the suggested label.
        sample_weight: Weight for training: the largest entry of the sample's target.
        outlier_score: From 0 (typical) to 1 (no class fits). NaN if it was not computed.
        duplicate_group: Number of the sample's group of duplicates, -1 without duplicates.
        reason: Why a sample deserves a look: "prediction" or "duplicate" for a likely error, else "outlier" or "".
        ids: Identifier of each sample.
        summary: Estimated error rate, precision and recall, duplicates and the noise matrix (`LabelErrorSummary`).

    Examples:
        >>> report = find_label_errors(labels, features=features)
        >>> print(report.summary)
        >>> worst = report.ranked_indices[:20]
        >>> cleaned = features[~report.is_error]
        >>> report.to_csv("labels.csv")
    """

    class_names: Array  # K
    given_codes: Array
    suggested_codes: Array
    runner_up_codes: Array
    predicted_codes: Array  # predicted class of a sample that was not trained on
    is_error: Array
    p_wrong: Array
    rank_score: Array  # higher is more likely wrong: P(wrong), or a number without ties that orders alike
    confidence: Array
    sample_weight: Array
    outlier_score: Array
    duplicate_group: Array
    in_conflict: Array  # True for a sample that has a duplicate with another label
    too_few: Array  # K: True for a class with too few samples to judge
    quality: ListQuality
    ids: Array
    index: Any  # index of the caller's labels, for `to_frame`
    noise_matrix: Array | None  # K×K; estimated from the suggestions if None
    paths: Array
    split_names: Sequence[str]
    split_codes: Array  # positions in `split_names`
    samples: Sequence[Any] | None = None  # what a notebook shows of each sample: images or texts
    feature_map: "FeatureMap | None" = None

    def __len__(self) -> int:
        return len(self.given_codes)

    def __repr__(self) -> str:
        return f"LabelErrorReport: {self.summary}"

    def _repr_html_(self) -> str:
        from selfadapt.evaluation.label_errors.notebook_view import report_html, sample_html

        samples = self.samples
        return report_html(self, None if samples is None else lambda i: sample_html(samples[i]), self.feature_map)

    @cached_property
    def ranked_indices(self) -> Array:
        order_N = np.argsort(-self.rank_score, kind="stable")
        return order_N[np.argsort(~self.is_error[order_N], kind="stable")]

    @cached_property
    def given_labels(self) -> Array:
        return self._names_of(self.given_codes)

    @cached_property
    def suggested_labels(self) -> Array:
        return self._names_of(self.suggested_codes)

    @cached_property
    def runner_up_labels(self) -> Array:
        return self._names_of(self.runner_up_codes)

    def _names_of(self, codes: Array) -> Array:
        names = self.class_names[codes]
        return names if (codes >= 0).all() else np.where(codes >= 0, names, "")

    def apply_to(self, table: Any, column: str, *, confidence: float = 0.6) -> Any:
        """Return a copy of a table in which the likely errors have the suggested labels.

        Args:
            table: A pandas or polars DataFrame or a Dataset of `datasets`. Its rows are matched by id: the index in
                pandas, else the column `id`, else the position.
            column: Name of the label column.
            confidence: Least confidence of a suggestion to be used.

        Returns:
            A table of the same type. Its index, column types and all other values are unchanged.

        Raises:
            ValueError: If the ids or the given labels are not those of this report.

        Examples:
            >>> report = find_label_errors(frame["label"], features=frame[["height", "weight"]])
            >>> corrected = report.apply_to(frame, "label")
        """
        spellings, own = label_spellings(table, column), [str(label) for label in self.given_labels.tolist()]
        if len(own) == len(spellings) and all(map(tuple.__contains__, spellings, own)):
            rows = dict(enumerate(range(len(own))))  # the table of this report, row by row
        else:
            rows = self._rows_by_id(row_ids(table))
        for row, i in rows.items():
            if own[i] not in spellings[row]:
                raise ValueError(
                    f"the label of {self.ids[i]!r} is {spellings[row][-1]!r} here, but {own[i]!r} in the report; pass "
                    "the table that the report was made from"
                )
        taken = self.is_error & (self.confidence >= confidence)
        return corrected_copy(
            table, column, {row: str(self.suggested_labels[i]) for row, i in rows.items() if taken[i]}
        )

    def _rows_by_id(self, ids: Sequence[str]) -> dict[int, int]:
        """The position in this report of each row of a table that it has."""
        rows = {row: self.position[sample_id] for row, sample_id in enumerate(ids) if sample_id in self.position}
        if not rows:
            raise ValueError(
                f"no row has an id of this report, such as {self.ids[0]!r}; pass the table of these labels"
            )
        if len(set(ids)) < len(ids) or len(self.position) < len(self):
            raise ValueError("the index repeats a value, so rows cannot be found by it; pass the whole table, in order")
        return rows

    @cached_property
    def reason(self) -> Array:
        error_codes = np.where(self.in_conflict, 2, 1)
        other_codes = np.where(self.outlier_score > _FAR, 3, 0)
        reasons: Array = REASONS[np.where(self.is_error, error_codes, other_codes)]
        return reasons

    @property
    def is_judged(self) -> Array:
        """True for samples that were judged, bool of shape (N,)."""
        return np.isfinite(self.p_wrong)

    @property
    def is_calibrated(self) -> bool:
        """Whether P(wrong) is an estimated probability, as from out-of-sample predictions."""
        # Only those have outlier scores, also in a report that is read back from labels.csv.
        return bool(np.isfinite(self.outlier_score).any() and self.is_judged.any())

    @cached_property
    def position(self) -> dict[str, int]:
        """The position of each id."""
        return {sample_id: row for row, sample_id in enumerate(self.ids.tolist())}

    def rows_of(self, split: str) -> Array:
        """Positions of the samples of a split."""
        return np.flatnonzero(self.split_codes == list(self.split_names).index(split))

    def of_split(self, split: str) -> "LabelErrorReport":
        """Return the report on one split."""
        rows = self.rows_of(split)
        return replace(
            self, **{name: getattr(self, name)[rows] for name in PER_SAMPLE}, index=None, samples=None, feature_map=None
        )

    @cached_property
    def summary(self) -> LabelErrorSummary:
        errors = int(self.is_error.sum())
        precision, recall = self.quality.at(errors) if errors else (None, None)
        members = np.argsort(self.duplicate_group, kind="stable")[(self.duplicate_group < 0).sum() :]
        starts = np.flatnonzero(np.diff(self.duplicate_group[members])) + 1
        groups = [group for group in np.split(members, starts) if len(group) > 1]
        count = len(self.class_names)
        given_K = np.bincount(self.given_codes, minlength=count).tolist()
        wrong_K = np.bincount(self.given_codes[self.is_error], minlength=count).tolist()
        rows = zip(self.class_names, given_K, wrong_K, self.too_few.tolist(), strict=True)
        matrix_KK = self.noise_matrix
        if matrix_KK is None:
            suggested_N, given_N = (torch.from_numpy(codes) for codes in (self.suggested_codes, self.given_codes))
            matrix_KK = transition_matrix(suggested_N.long(), given_N.long(), count).numpy()
        return LabelErrorSummary(
            samples=len(self),
            errors=errors,
            error_rate=self.quality.noise_rate,
            precision=precision,
            recall=recall,
            quality=self.quality,
            duplicate_groups=tuple(tuple(self.ids[group].tolist()) for group in groups),
            conflicting_groups=sum(len(np.unique(self.given_codes[group])) > 1 for group in groups),
            classes=tuple(ClassSummary(str(name), given, wrong, few) for name, given, wrong, few in rows),
            noise_matrix=matrix_KK,
        )

    def rows(self) -> Iterator[dict[str, str]]:
        """The table as text, most likely wrong first, by the column names of labels.csv."""
        for i in self.ranked_indices.tolist():
            group = int(self.duplicate_group[i])
            yield {
                "id": str(self.ids[i]),
                "given": str(self.given_labels[i]),
                "suggested": str(self.suggested_labels[i]),
                "p_wrong": _decimal(self.p_wrong[i]),
                "confidence": _decimal(self.confidence[i]),
                "weight": _decimal(self.sample_weight[i]),
                "suspect": str(int(self.is_error[i])),
                "outsider": _decimal(self.outlier_score[i]),
                "runner_up": str(self.runner_up_labels[i]),
                "duplicate_group": str(group) if group >= 0 else "",
                "reason": str(self.reason[i]),
            }

    def to_csv(self, path: str | Path) -> None:
        """Write one row per label, most likely wrong first, with the columns of labels.csv.

        Args:
            path: The file to write. An existing file is replaced.
        """
        with atomic_write(Path(path)) as file:
            writer = csv.writer(file)
            for number, row in enumerate(self.rows()):
                if number == 0:
                    writer.writerow(row)  # the column names
                writer.writerow(row.values())

    def to_frame(self) -> Any:
        """Return one row per label as a pandas DataFrame, most likely wrong first.

        Returns:
            A DataFrame with the index of the labels, if they were a pandas Series.

        Raises:
            ImportError: If pandas is not installed.
        """
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


def _decimal(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.6f}"
