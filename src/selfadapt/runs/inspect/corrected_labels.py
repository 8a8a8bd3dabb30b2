"""The corrected label table: what people decided, then suggestions as far as they are wanted, then labels as given.

Suggestions are taken by their confidence, or as deep as a precision is promised by what a review measured. Validation
and test labels change by decisions alone: to correct a yardstick by what it measures would be cheating.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from selfadapt.core.errors import UserError
from selfadapt.review.decisions import read_decisions, write_decisions
from selfadapt.review.journal import Decision
from selfadapt.review.statistics.draws import SUGGESTIONS, read_draw
from selfadapt.review.statistics.measured import Depth, Promise, promise
from selfadapt.run_folder.csv_tables import write_table
from selfadapt.run_folder.folder import RunFolder
from selfadapt.run_folder.labels_file import Verdicts

COLUMNS = ("id", "path", "part", "label", "given", "by")
CONFIDENT = 0.6  # the confidence of a suggestion from which on it is taken, if nothing else is asked for
PASSED_OVER = {  # why the label of a suspect stays as it was given
    "below_confidence": "below the confidence that was asked for",
    "not_promised": "without the precision that was asked for",
    "other_parts": "outside of the training part, where people alone change labels",
    "kept_by_people": "that people decided to keep",
}


@dataclass(frozen=True, kw_only=True)
class Corrected:
    """The table that was written."""

    path: Path
    labels: int
    changed: int
    removed: int
    by: Mapping[str, int]  # how many labels are by a person, a suggestion, or as given
    passed_over: Mapping[str, int]  # how many suspects keep their label, by the words of PASSED_OVER
    promise: Promise | None = None  # what was measured, where a precision was asked for
    left: int = 0  # suggestions on training labels that nobody has decided about
    depth: Depth | None = None  # down to which suggestions were taken by it


def write_corrected_labels(
    folder: RunFolder, *, confidence: float | None = None, precision: float | None = None, path: Path | None = None
) -> Corrected:
    """Write the table, and say what is in it.

    Without `precision`, suggestions of this confidence and above are taken. With it, as many as can be of which, but
    for a probability of 1 - `confidence`, at least this share is right.
    """
    for name, value in (("confidence", confidence), ("precision", precision)):
        if value is not None and not 0 <= value <= 1:
            raise UserError(f"--{name} {value} must be within 0..1")
    if precision is not None and confidence == 1:
        raise UserError("--confidence 1 cannot be had from a sample; ask for less, such as 0.95")
    Verdicts.of(folder)  # refuses what is no run, was not audited, or was damaged by hand
    verdicts = {row["id"]: row for row in folder.read_labels()}
    decided = read_decisions(folder, verdicts)
    found, depth = None, None
    if precision is None:
        taken = _confident(folder, verdicts, CONFIDENT if confidence is None else confidence)
    else:
        found, depth, taken = _promised(folder, decided, precision, 0.95 if confidence is None else confidence)
    unsure = "below_confidence" if precision is None else "not_promised"
    rows, removed, passed_over = [], 0, Counter[str]()
    for sample in _samples(folder, verdicts):
        sample_id, given = sample["id"], sample["given"]
        label, by = given, "given"
        if sample_id in decided:
            chosen = decided[sample_id].label
            if chosen is None:
                removed += 1
                continue
            label, by = chosen, "person"
        elif sample["part"] == "train" and sample_id in taken:
            label, by = taken[sample_id], "suggestion"
        if label == given and verdicts[sample_id]["suspect"] == "1":
            other = "other_parts" if sample["part"] != "train" else unsure
            passed_over["kept_by_people" if by == "person" else other] += 1
        rows.append((sample_id, sample["path"], sample["part"], label, given, by))
    path = path or folder.path / "corrected.csv"
    write_table(path, COLUMNS, rows)
    write_decisions(folder, decided, verdicts.values())
    return Corrected(
        path=path,
        labels=len(rows),
        changed=sum(label != given for _, _, _, label, given, _ in rows),
        removed=removed,
        by=Counter(row[-1] for row in rows),
        passed_over={reason: passed_over[reason] for reason in PASSED_OVER if passed_over[reason]},
        promise=found,
        left=_left(verdicts, decided) if found is None else found.depths[-1].rest,
        depth=depth,
    )


def _left(verdicts: Mapping[str, Mapping[str, str]], decided: Mapping[str, Decision]) -> int:
    suspects = (own for own, row in verdicts.items() if row["suspect"] == "1" and row["part"] == "train")
    return sum(sample_id not in decided for sample_id in suspects)


def _samples(folder: RunFolder, verdicts: Mapping[str, Mapping[str, str]]) -> list[Mapping[str, str]]:
    """Training and validation samples in the order of samples.csv, then the others that were judged."""
    recorded = folder.recorded_samples()
    lacking = next((sample["id"] for sample in recorded if sample["id"] not in verdicts), None)
    if lacking is not None:
        raise UserError(f"{folder.labels_file} lacks {lacking}; make it anew with: selfadapt audit {folder.path}")
    known = {sample["id"] for sample in recorded}
    return [*recorded, *(row for sample_id, row in verdicts.items() if sample_id not in known)]


def _confident(folder: RunFolder, verdicts: Mapping[str, Mapping[str, str]], confidence: float) -> dict[str, str]:
    taken = {}
    for sample_id, row in verdicts.items():
        try:
            if row["suspect"] == "1" and float(row["confidence"]) >= confidence:
                taken[sample_id] = row["suggested"]
        except ValueError:
            text = row["confidence"]
            raise UserError(f"{folder.labels_file}: {text!r}, the confidence of {sample_id}, is no number") from None
    return taken


def _promised(
    folder: RunFolder, decided: Mapping[str, Decision], precision: float, confidence: float
) -> tuple[Promise | None, Depth | None, dict[str, str]]:
    """What was measured, the depth down to which the precision holds, and the suggestions above it."""
    draw = read_draw(folder, SUGGESTIONS)
    if draw is None:
        return None, None, {}
    found = promise(draw, decided, confidence)
    depth = found.deepest(precision)
    size = 0 if depth is None else depth.size
    return found, depth, dict(zip(draw.ids[:size], draw.suggested[:size], strict=True))
