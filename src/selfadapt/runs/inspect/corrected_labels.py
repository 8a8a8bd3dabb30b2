"""The corrected label table: decisions of people first, then suggestions, then labels as given.

Suggestions are taken by their confidence, or down to the depth at which a review guarantees a precision. Validation and
test labels are changed by decisions only: correcting them by the model that they evaluate would inflate its accuracy.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from selfadapt.core.errors import UserError
from selfadapt.data.forms.frames import corrected_copy, label_spellings
from selfadapt.data.forms.known_forms import form_of
from selfadapt.data.sources.write_back import Corrections, check_out, rows_and_changes, write_back
from selfadapt.evaluation.label_errors.report import LabelErrorReport
from selfadapt.review.decisions import read_decisions, write_decisions
from selfadapt.review.journal import Decision
from selfadapt.review.statistics.draws import SUGGESTIONS, read_draw
from selfadapt.review.statistics.measurement import Depth, SuggestionPrecision, measure_suggestions
from selfadapt.run_folder.csv_tables import write_table
from selfadapt.run_folder.folder import RunFolder
from selfadapt.run_folder.labels_file import read_report
from selfadapt.runs.config.facts import columns_of
from selfadapt.runs.config.plan import Plan
from selfadapt.runs.config.sections import DataSettings

COLUMNS = ("id", "path", "part", "label", "given", "by", "suggested")
CONFIDENT = 0.6  # default confidence from which a suggestion is taken
PASSED_OVER = {  # why the label of a likely error is left as given
    "below_confidence": "below the requested confidence",
    "not_promised": "without the requested precision",
    "other_parts": "outside the training split, where only people change labels",
    "kept_by_people": "kept by people",
}


@dataclass(frozen=True, kw_only=True)
class Corrected:
    """The table that was written."""

    path: Path
    corrections: Corrections
    labels: int
    changed: int
    removed: int
    by: Mapping[str, int]  # number of labels by a person, by a suggestion, or as given
    passed_over: Mapping[str, int]  # number of likely errors that keep their label, by the keys of PASSED_OVER
    promise: SuggestionPrecision | None = None  # what was measured, if a precision was requested
    left: int = 0  # undecided suggestions on training labels
    depth: Depth | None = None  # down to which suggestions were taken


def write_corrected_labels(
    folder: RunFolder, *, confidence: float | None = None, precision: float | None = None, path: Path | None = None
) -> Corrected:
    """Write the table and return what is in it.

    Without `precision`, suggestions of at least this confidence are taken. With it, suggestions are taken down to the
    deepest depth at which at least this share of them is right, with probability `confidence`.
    """
    for name, value in (("confidence", confidence), ("precision", precision)):
        if value is not None and not 0 <= value <= 1:
            raise UserError(f"--{name} {value} must be within 0..1")
    if precision is not None and confidence == 1:
        raise UserError("no random sample gives a confidence of 1; choose a lower --confidence, such as 0.95")
    report = read_report(folder)
    decided = read_decisions(folder, report.position)
    found, depth = None, None
    if precision is None:
        rows = np.flatnonzero(
            report.is_error & (report.confidence >= (CONFIDENT if confidence is None else confidence))
        )
        taken = dict(zip(report.ids[rows], report.suggested_labels[rows], strict=True))
    else:
        found, depth, taken = _guaranteed(folder, decided, precision, 0.95 if confidence is None else confidence)
    unsure = "below_confidence" if precision is None else "not_promised"
    table, removed, passed_over = [], set[str](), Counter[str]()
    for row in _rows_in_order(folder, report):
        sample_id, given = report.ids[row], report.given_labels[row]
        split = report.split_names[report.split_codes[row]]
        label, by, suggested = given, "given", report.suggested_labels[row] if report.is_error[row] else ""
        if sample_id in decided:
            chosen = decided[sample_id].label
            if chosen is None:
                removed.add(str(sample_id))
                continue
            label, by, suggested = chosen, "person", ""
        elif split == "train" and sample_id in taken:
            label, by = taken[sample_id], "suggestion"
        if label == given and report.is_error[row]:
            other = "other_parts" if split != "train" else unsure
            passed_over["kept_by_people" if by == "person" else other] += 1
        table.append((sample_id, report.paths[row], split, label, given, by, suggested))
    path = path or folder.path / "corrected.csv"
    write_table(path, COLUMNS, table)
    write_decisions(folder, decided, report)
    return Corrected(
        path=path,
        corrections=Corrections(labels={row[0]: row[3] for row in table}, removed=removed),
        labels=len(table),
        changed=sum(label != given for _, _, _, label, given, *_ in table),
        removed=len(removed),
        by=Counter(row[5] for row in table),
        passed_over={reason: passed_over[reason] for reason in PASSED_OVER if passed_over[reason]},
        promise=found,
        left=_left(report, decided) if found is None else found.depths[-1].rest,
        depth=depth,
    )


def check_data_out(folder: RunFolder, out: Path) -> None:
    """Check that the data of a run can be written to `out`, before anything is written."""
    check_out(_data_settings(folder).source, out)


def write_corrected_data(folder: RunFolder, corrections: Corrections, out: Path) -> None:
    """Write the data of a run again with corrected labels, in the form in which they came."""
    settings = _data_settings(folder)
    write_back(settings.source, columns_of(settings), corrections, out)


def corrected_table(folder: RunFolder, corrections: Corrections, table: Any) -> Any:
    """A copy of the table in memory that a run was trained on, with corrected labels."""
    settings = _data_settings(folder)
    path, columns = Path(settings.source), columns_of(settings)
    form = form_of(path)
    if form is None:
        raise ValueError(f"{folder.path} was trained on {path}, which is not a table")
    given, changes = rows_and_changes(path, form, columns, corrections)
    spellings = label_spellings(table, columns.label)
    if len(spellings) < len(given) or any(label not in spellings[row] for row, label in given.items()):
        raise ValueError(f"the rows of the table are not those of {path}; pass the table that the run was trained on")
    return corrected_copy(table, columns.label, changes)


def _data_settings(folder: RunFolder) -> DataSettings:
    settings = Plan.of(folder, "labels").data
    if settings.noise is not None:
        raise UserError(f"{folder.path} was trained with --noise, so its given labels are not those of the data")
    return settings


def _left(report: LabelErrorReport, decided: Mapping[str, Decision]) -> int:
    train = report.rows_of("train")
    return sum(sample_id not in decided for sample_id in report.ids[train[report.is_error[train]]])


def _rows_in_order(folder: RunFolder, report: LabelErrorReport) -> list[int]:
    """Training and validation samples in the order of samples.csv, then the other audited ones."""
    recorded = [sample["id"] for sample in folder.recorded_samples()]
    missing = next((sample_id for sample_id in recorded if sample_id not in report.position), None)
    if missing is not None:
        raise UserError(f"{folder.labels_file} lacks {missing}; write it again with: selfadapt audit {folder.path}")
    return [report.position[sample_id] for sample_id in dict.fromkeys([*recorded, *report.ids])]


def _guaranteed(
    folder: RunFolder, decided: Mapping[str, Decision], precision: float, confidence: float
) -> tuple[SuggestionPrecision | None, Depth | None, dict[str, str]]:
    """What was measured, the depth down to which the precision holds, and the suggestions above it."""
    draw = read_draw(folder, SUGGESTIONS)
    if draw is None:
        return None, None, {}
    found = measure_suggestions(draw, decided, confidence)
    depth = found.deepest(precision)
    size = 0 if depth is None else depth.size
    return found, depth, dict(zip(draw.ids[:size], draw.suggested[:size], strict=True))
