"""The corrected label table: what a person decided, then what the audit is confident of, then the label as given."""

from pathlib import Path

from selfadapt.data.table import csv_rows
from selfadapt.errors import UserError
from selfadapt.report.results import RunFolder, write_table

COLUMNS = ("id", "path", "label", "given")


def write_corrected_labels(folder: RunFolder, confidence: float, path: Path | None = None) -> tuple[Path, int, int]:
    """Write the table, and return where it is, how many labels changed, and how many there are."""
    if not 0 <= confidence <= 1:
        raise UserError(f"--confidence {confidence} must be within 0..1")
    classes = set(folder.read_run()["data"]["classes"])
    verdicts = {row["id"]: row for row in folder.read_labels() if row["part"] == "train"}
    decided = _decisions(folder, classes)
    strangers = [sample_id for sample_id in decided if sample_id not in verdicts]
    if strangers:
        raise UserError(f"{folder.decisions_file}: {strangers[0]!r} is no training sample of {folder.path}")
    rows = []
    for sample in folder.recorded_samples():
        if sample["part"] != "train":
            continue  # held out for validation, so never judged
        verdict = verdicts.get(sample["id"])
        if verdict is None:
            raise UserError(
                f"{folder.labels_file} lacks {sample['id']}; make it anew with: selfadapt audit {folder.path}"
            )
        try:
            confident = verdict["suspect"] == "1" and float(verdict["confidence"]) >= confidence
        except ValueError:
            text = verdict["confidence"]
            raise UserError(f"{folder.labels_file}: {text!r}, the confidence of {sample['id']}, is no number") from None
        label = decided.get(sample["id"], verdict["suggested"] if confident else sample["given"])
        rows.append((sample["id"], sample["path"], label, sample["given"]))
    path = path or folder.path / "corrected.csv"
    write_table(path, COLUMNS, rows)
    return path, sum(label != given for _, _, label, given in rows), len(rows)


def _decisions(folder: RunFolder, classes: set[str]) -> dict[str, str]:
    if not folder.decisions_file.exists():
        return {}
    decisions: dict[str, str] = {}
    lines: dict[str, int] = {}
    for number, row in enumerate(csv_rows(folder.decisions_file, exact=True), start=2):
        if not {"id", "label"} <= set(row):
            raise UserError(f"{folder.decisions_file} must have the columns id and label")
        if row["label"] not in classes:
            raise UserError(f"{folder.decisions_file}, line {number}: {row['label']!r} is no class of the data")
        earlier = decisions.setdefault(row["id"], row["label"])
        if earlier != row["label"]:
            raise UserError(
                f"{folder.decisions_file}: {row['id']!r} is {earlier!r} in line {lines[row['id']]} but "
                f"{row['label']!r} in line {number}; keep one of them"
            )
        lines.setdefault(row["id"], number)
    return decisions
