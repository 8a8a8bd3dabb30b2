"""What people decided about the labels of a run: the journal, checked against the run, and the table for people.

While the journal has no line, a decisions.csv that somebody wrote by hand (id and label) counts instead; the first
review takes it over. A journal that is there but empty is what a stop or a full disk leaves of that.
"""

from collections.abc import Iterable, Mapping, Sequence

from selfadapt.core.errors import UserError
from selfadapt.data.tabular.table_file import csv_rows
from selfadapt.review.journal import Decision, Journal
from selfadapt.run_folder.csv_tables import write_table
from selfadapt.run_folder.folder import RunFolder

COLUMNS = ("id", "path", "part", "given", "label", "decision", "who", "when")
WORDS = {"accept": "accepted", "keep": "kept", "choose": "another class", "remove": "removed", "import": "by hand"}


def read_decisions(folder: RunFolder, known: Mapping[str, object] | None = None) -> dict[str, Decision]:
    """The decisions that stand, by sample; those of a hand-made table while the journal has no line.

    All must be about samples that are `known`, if that is given, and name classes of the run.
    """
    journal = Journal.read(folder.journal_file)
    if journal.lines:
        decisions, source = journal.decisions, folder.journal_file
    else:
        decisions, source = _by_hand(folder), folder.decisions_file
    classes = set(folder.read_run()["data"]["classes"]) if decisions else set()
    for sample_id, decision in decisions.items():
        if known is not None and sample_id not in known:
            raise UserError(f"{source}: {sample_id!r} is no sample of {folder.path}")
        if decision.label is not None and decision.label not in classes:
            raise UserError(f"{source}: {decision.label!r}, decided for {sample_id!r}, is no class of the data")
    return decisions


def open_journal(folder: RunFolder) -> Journal:
    """The journal to go on with; a new one begins with the decisions of a hand-made table, if there is any."""
    by_hand = {} if Journal.read(folder.journal_file).lines else _by_hand(folder)
    journal = Journal.write(folder.journal_file)
    if by_hand and not journal.lines:
        labels = {sample_id: decision.label for sample_id, decision in by_hand.items()}
        journal.decide("import", labels, who=folder.decisions_file.name)
    return journal


def write_decisions(folder: RunFolder, decisions: Mapping[str, Decision], rows: Iterable[Mapping[str, str]]) -> None:
    """decisions.csv, from the journal and what labels.csv says of the samples.

    While the journal has no line, nothing is written: the table that is there may be somebody's own.
    """
    if Journal.read(folder.journal_file).lines:
        write_table(folder.decisions_file, COLUMNS, _table(decisions, rows))


def _table(decisions: Mapping[str, Decision], rows: Iterable[Mapping[str, str]]) -> Iterable[Sequence[str]]:
    for row in rows:
        own = decisions.get(row["id"])
        if own is not None:
            about = (row["id"], row["path"], row["part"], row["given"])
            yield (*about, own.label or "", WORDS.get(own.what, own.what), own.who, own.when)


def _by_hand(folder: RunFolder) -> dict[str, Decision]:
    if not folder.decisions_file.exists():
        return {}
    classes = set(folder.read_run()["data"]["classes"])
    decisions: dict[str, Decision] = {}
    for number, row in enumerate(csv_rows(folder.decisions_file, exact=True), start=2):
        if not {"id", "label"} <= set(row):
            raise UserError(f"{folder.decisions_file} must have the columns id and label")
        if row["label"] not in classes:
            raise UserError(f"{folder.decisions_file}, line {number}: {row['label']!r} is no class of the data")
        made = Decision(label=row["label"], what="import", who="", when="", line=number, looked_at=False)
        earlier = decisions.setdefault(row["id"], made)
        if earlier.label != row["label"]:
            raise UserError(
                f"{folder.decisions_file}: {row['id']!r} is {earlier.label!r} in line {earlier.line} but "
                f"{row['label']!r} in line {number}; keep one of them"
            )
    return decisions
