"""Decisions about the labels of a run: the journal, checked against the run, and decisions.csv.

While the journal is empty, a decisions.csv written by hand (id and label) is used instead; the first review imports
it. An empty journal is what an interrupted import leaves behind.
"""

from collections.abc import Mapping

from selfadapt.core.errors import UserError
from selfadapt.data.forms.plain_tables import csv_rows
from selfadapt.evaluation.label_errors.report import LabelErrorReport
from selfadapt.review.journal import Decision, Journal
from selfadapt.run_folder.csv_tables import write_table
from selfadapt.run_folder.folder import RunFolder

COLUMNS = ("id", "path", "part", "given", "label", "decision", "who", "when")
WORDS = {"accept": "accepted", "keep": "kept", "choose": "another class", "remove": "removed", "import": "by hand"}


def read_decisions(folder: RunFolder, known: Mapping[str, object] | None = None) -> dict[str, Decision]:
    """The current decisions by sample id, from the journal or, while it is empty, from a hand-made table.

    Raises:
        UserError: If a decision is about a sample that is not in `known`, or names a class that the run does not have.
    """
    journal = Journal.read(folder.journal_file)
    if journal.lines:
        decisions, source = journal.decisions, folder.journal_file
    else:
        decisions, source = _hand_made(folder), folder.decisions_file
    classes = set(folder.read_run()["data"]["classes"]) if decisions else set()
    for sample_id, decision in decisions.items():
        if known is not None and sample_id not in known:
            raise UserError(f"{source}: {sample_id!r} is not a sample of {folder.path}")
        if decision.label is not None and decision.label not in classes:
            raise UserError(f"{source}: {decision.label!r}, decided for {sample_id!r}, is not a class of the data")
    return decisions


def open_journal(folder: RunFolder) -> Journal:
    """Open the journal for writing. A new one starts with the decisions of a hand-made table, if there is one."""
    hand_made = {} if Journal.read(folder.journal_file).lines else _hand_made(folder)
    journal = Journal.write(folder.journal_file)
    if hand_made and not journal.lines:
        labels = {sample_id: decision.label for sample_id, decision in hand_made.items()}
        journal.decide("import", labels, who=folder.decisions_file.name)
    return journal


def write_decisions(folder: RunFolder, decisions: Mapping[str, Decision], report: LabelErrorReport) -> None:
    """Write decisions.csv from the journal, in the order of the report.

    While the journal is empty, nothing is written: an existing table may be hand-made.
    """
    rows = []
    for row, sample_id in enumerate(report.ids.tolist()):
        own = decisions.get(sample_id)
        if own is not None:
            about = (
                sample_id,
                report.paths[row],
                report.split_names[report.split_codes[row]],
                report.given_labels[row],
            )
            rows.append((*about, own.label or "", WORDS.get(own.what, own.what), own.who, own.when))
    if Journal.read(folder.journal_file).lines:
        write_table(folder.decisions_file, COLUMNS, rows)


def _hand_made(folder: RunFolder) -> dict[str, Decision]:
    if not folder.decisions_file.exists():
        return {}
    classes = set(folder.read_run()["data"]["classes"])
    decisions: dict[str, Decision] = {}
    for number, row in enumerate(csv_rows(folder.decisions_file, exact=True), start=2):
        if not {"id", "label"} <= set(row):
            raise UserError(f"{folder.decisions_file} must have the columns id and label")
        if row["label"] not in classes:
            raise UserError(f"{folder.decisions_file}, line {number}: {row['label']!r} is not a class of the data")
        made = Decision(label=row["label"], what="import", who="", when="", line=number, individual=False)
        earlier = decisions.setdefault(row["id"], made)
        if earlier.label != row["label"]:
            raise UserError(
                f"{folder.decisions_file}: {row['id']!r} is {earlier.label!r} in line {earlier.line} but "
                f"{row['label']!r} in line {number}; keep one of them"
            )
    return decisions
