"""The review of a run, without the web server: the samples to show, their facts, and the decisions about them.

A row is a line of labels.csv; the label in row 0 is the most likely wrong. The decision about a row is a number: the
code of a class, REMOVED, or UNDECIDED. An item is what is decided together: one row, or all rows of a conflict, which
are duplicates with different labels.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from threading import Lock
from typing import Any, get_args

import numpy as np

from selfadapt.evaluation.label_errors.report import Array, LabelErrorReport
from selfadapt.review.conflicts import conflicts_of
from selfadapt.review.decisions import open_journal, read_decisions, write_decisions
from selfadapt.review.journal import Queue, What
from selfadapt.review.row_filter import BadRequest, Filter
from selfadapt.review.statistics.draws import SUGGESTIONS, draw, read_draw
from selfadapt.review.statistics.label_figures import figures_of, read_draws
from selfadapt.review.statistics.measurement import further_checks, measure_suggestions, review_split, reviewed_in_order
from selfadapt.run_folder.folder import RunFolder
from selfadapt.run_folder.labels_file import read_report

UNDECIDED, REMOVED = -1, -2
OUTLIER = 0.5  # outlier score from which a sample is shown as one; see evaluation/label_errors/outliers.py
_MOST_PAIRS = 500  # class pairs to choose from, the most frequent first
_MOST_DUPLICATES = 12  # images shown of a group of duplicates
_DECISIONS = tuple(what for what in get_args(What) if what != "import")


class Desk:
    """The review of one run. It holds the lock of the journal, so it alone writes decisions."""

    def __init__(self, folder: RunFolder, who: str) -> None:
        self.folder, self.who = folder, who
        self.report = _with_drawn_suggestions(folder, read_report(folder))
        read_decisions(folder)  # raises an error if a decision names an unknown class
        self.journal = open_journal(folder)
        self.decided_N = np.full(len(self.report), UNDECIDED, np.int32)
        groups = folder.read_duplicates()
        self.group_N = np.zeros(len(self.report), np.int32)  # number of the group of duplicates, from 1; 0 without one
        position = self.report.position
        for number, group in enumerate(groups, start=1):
            self.group_N[[position[sample_id] for sample_id in group.members if sample_id in position]] = number
        self.conflicts = {row: conflict for conflict in conflicts_of(self.report, groups) for row in conflict.rows}
        self._code = {name: k for k, name in enumerate(self.report.class_names)}
        self._lock = Lock()
        for sample_id in self.journal.decisions:
            self._update(sample_id)

    def close(self) -> int:
        """Write decisions.csv and return the number of decided samples.

        Raises:
            JournalLost: If another program has damaged the journal; the decisions are in its `rescue_path`.
        """
        decisions = self.journal.decisions
        try:
            write_decisions(self.folder, decisions, self.report)
        finally:
            self.journal.close()
        return len(decisions)

    def about(self) -> dict[str, Any]:
        """The facts of the run that the page needs when it loads."""
        report, run = self.report, self.folder.read_run()
        count = len(report.class_names)
        errors = np.flatnonzero(report.is_error)
        pairs, counts = np.unique(
            report.given_codes[errors].astype(np.int64) * count + report.suggested_codes[errors], return_counts=True
        )
        frequent = np.argsort(-counts, kind="stable")[:_MOST_PAIRS]
        return {
            "run": self.folder.path.name,
            "data": run["data"]["name"],
            "classes": report.class_names.tolist(),
            "splits": self._split_sizes(),
            "pairs": [
                [*divmod(int(pair), count), int(size)]
                for pair, size in zip(pairs[frequent], counts[frequent], strict=True)
            ],
            "labels": len(report),
            "errors": len(errors),
            "duplicates": int((self.group_N > 0).sum()),
            "outliers": int((report.outlier_score >= OUTLIER).sum()),
        }

    def _split_sizes(self) -> dict[str, int]:
        sizes = {split: len(self.report.rows_of(split)) for split in self.report.split_names}
        return {split: size for split, size in sizes.items() if size}

    def counts(self) -> dict[str, int]:
        """The progress of the review."""
        decided_N = self.decided_N != UNDECIDED
        return {
            "line": len(self.journal.lines),
            "decided": int(decided_N.sum()),
            "errors_decided": int((decided_N & self.report.is_error).sum()),
        }

    def figures(self) -> dict[str, Any]:
        """The statistics of the labels, as `selfadapt audit` and report.html show them."""
        return figures_of(self.report, self.journal.decisions, read_draws(self.folder)).to_json()

    def rows(self, wanted: Filter) -> list[int]:
        """The rows that a filter selects, in order; of each item, only the first."""
        report = self.report
        chosen_N = {
            "errors": report.is_error,
            "duplicates": self.group_N > 0,
            "outliers": report.outlier_score >= OUTLIER,
            "all": np.ones(len(report), bool),
        }[wanted.show].copy()
        if wanted.state != "any":
            chosen_N &= (self.decided_N == UNDECIDED) == (wanted.state == "undecided")
        if wanted.split is not None:
            if wanted.split not in report.split_names:
                raise BadRequest(f"unknown split {wanted.split!r}")
            chosen_N &= report.split_codes == list(report.split_names).index(wanted.split)
        if wanted.given is not None:
            chosen_N &= report.given_codes == wanted.given
        if wanted.suggested is not None:
            chosen_N &= report.suggested_codes == wanted.suggested
        rows = np.flatnonzero(chosen_N)
        if wanted.search:
            text = wanted.search.lower()
            rows = np.array([row for row in rows.tolist() if text in report.ids[row].lower()], np.int64)
        if wanted.show == "duplicates":
            rows = rows[np.argsort(self.group_N[rows], kind="stable")]
        if wanted.sort == "class":
            rows = rows[np.lexsort((rows, report.suggested_codes[rows], report.given_codes[rows]))]
        first: dict[int, int] = {}  # the first selected row of each item, by its lowest row
        return [row for row in rows.tolist() if first.setdefault(self._item(row)[0], row) == row]

    def _item(self, row: int) -> tuple[int, ...]:
        """The rows of the item of this row."""
        conflict = self.conflicts.get(row)
        return (row,) if conflict is None else conflict.rows

    def samples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """The facts of these rows."""
        report = self.report
        self._check(rows)
        return [
            {
                **self._facts(row),
                "path": report.paths[row],
                "suggested": int(report.suggested_codes[row]),
                "confidence": round(float(report.confidence[row]), 4),
                "outlier": bool(report.outlier_score[row] >= OUTLIER),
                "duplicates": self._duplicates(row),
                "duplicate_count": int((self.group_N == self.group_N[row]).sum()) if self.group_N[row] else 0,
                "conflict": row in self.conflicts,
                **self._decision(row),
            }
            for row in dict.fromkeys(rows)
        ]

    def _facts(self, row: int) -> dict[str, Any]:
        report = self.report
        return {
            "row": row,
            "id": report.ids[row],
            "split": report.split_names[report.split_codes[row]],
            "given": int(report.given_codes[row]),
        }

    def _duplicates(self, row: int) -> list[dict[str, Any]]:
        """The duplicates to show, this row included: all rows of a conflict, else the first few of its group."""
        conflict = self.conflicts.get(row)
        if conflict is not None:
            return [{**self._facts(member), "disagrees": member in conflict.disagreeing} for member in conflict.rows]
        if not self.group_N[row]:
            return []
        members = np.flatnonzero(self.group_N == self.group_N[row]).tolist()
        shown = [row, *(member for member in members if member != row)][:_MOST_DUPLICATES]
        return [{**self._facts(member), "disagrees": False} for member in shown]

    def decide(self, what: str, rows: Sequence[int], label: int | None = None, queue: str = "work") -> dict[str, Any]:
        """Decide about these rows. If there are several, those that are already decided stay as they are.

        Items are decided as a whole, except in the queue "measure". The decision is on disk when this returns.
        """
        self._check(rows)
        if not rows:
            raise BadRequest("name at least one row")
        if what not in _DECISIONS or queue not in get_args(Queue):
            raise BadRequest(
                f"what must be one of {', '.join(_DECISIONS)}, and queue one of {', '.join(get_args(Queue))}"
            )
        if queue == "measure" and len(rows) > 1:
            raise BadRequest("in the queue measure, samples must be decided one by one")
        if what == "choose" and (type(label) is not int or not 0 <= label < len(self.report.class_names)):
            raise BadRequest("choose needs the number of a class")
        with self._lock:
            several = len(rows) > 1
            if queue == "work":
                rows = list(dict.fromkeys(member for row in rows for member in self._item(row)))
            open_rows = [row for row in rows if self.decided_N[row] == UNDECIDED] if several else rows
            if not open_rows:
                raise BadRequest("all of these are decided already; undo that, or decide about one by itself")
            codes = {"accept": self.report.suggested_codes, "keep": self.report.given_codes}
            labels: dict[str, str | None] = {}
            for row in open_rows:
                code = codes[what][row] if what in codes else label if what == "choose" else None
                labels[self.report.ids[row]] = None if code is None else self.report.class_names[code]
            self.journal.decide(what, labels, who=self.who, queue=queue, at_once=several)  # type: ignore[arg-type]
            return self._updated(labels)

    def undo(self) -> dict[str, Any]:
        """Undo the last decision."""
        with self._lock:
            line = self.journal.undo(who=self.who)
            updated = self._updated([] if line is None else line["labels"])
        undone = None if line is None else {key: line[key] for key in ("line", "when", "who", "what")}
        return {**updated, "undone": undone}

    def changes(self, after: int) -> dict[str, Any]:
        """The changes after a line of the journal."""
        changed: set[str] = set()
        lines = list(self.journal.lines)
        for line in lines[max(0, after) :]:
            changed.update(lines[line["undoes"] - 1]["labels"] if line["what"] == "undo" else line["labels"])
        return {**self._updated(changed), "line": len(lines)}

    def draw(self, of: str) -> dict[str, Any]:
        """The rows of a random sample, in the order in which to review them. The first call draws the sample."""
        if of != SUGGESTIONS and of not in self._split_sizes():
            raise BadRequest(f"unknown split {of!r}")
        with self._lock:
            drawn = draw(self.folder, of, self.report, self.journal.decisions)
        position = self.report.position
        rows = [position[sample_id] for sample_id in drawn.in_order if sample_id in position]
        return {"of": of, "rows": rows, "reviewed": reviewed_in_order(drawn, self.journal.decisions)}

    def measured(self, precision: float, confidence: float) -> dict[str, Any]:
        """The estimates from the random samples reviewed so far."""
        if not (0 < precision <= 1 and 0 < confidence < 1):
            raise BadRequest("precision and confidence must be between 0 and 1")
        decisions = self.journal.decisions
        drawn = read_draw(self.folder, SUGGESTIONS)
        content: dict[str, Any] = {"precision": precision, "confidence": confidence, "suggestions": None, "splits": []}
        if drawn is not None:
            found = measure_suggestions(drawn, decisions, confidence)
            deepest = found.deepest(precision)
            content["suggestions"] = {
                **asdict(found),
                "deepest": None if deepest is None else found.depths.index(deepest),
                "further": further_checks(found, precision),
            }
        else:
            rows = self.report.rows_of("train")
            open_n = self.report.is_error[rows] & (self.decided_N[rows] == UNDECIDED)
            content["population"] = int(open_n.sum())
        for split in self._split_sizes():
            drawn = read_draw(self.folder, split)
            reviewed = review_split(self.report, split, decisions, drawn, confidence)
            content["splits"].append({**asdict(reviewed), "drawn": drawn is not None})
        return content

    def _check(self, rows: Sequence[int]) -> None:
        for row in rows:
            if not isinstance(row, int) or isinstance(row, bool) or not 0 <= row < len(self.report):
                raise BadRequest(f"unknown row {row!r}")

    def _updated(self, changed: Any) -> dict[str, Any]:
        """Update these samples; return the progress of the review and the decision about each sample."""
        rows = [row for row in map(self._update, changed) if row is not None]
        return {**self.counts(), "rows": {row: self._decision(row) for row in rows}}

    def _update(self, sample_id: str) -> int | None:
        row = self.report.position.get(sample_id)
        if row is not None:
            made = self.journal.decision(sample_id)
            if made is None:
                self.decided_N[row] = UNDECIDED
            else:
                self.decided_N[row] = REMOVED if made.label is None else self._code[made.label]
        return row

    def _decision(self, row: int) -> dict[str, Any]:
        made = self.journal.decision(self.report.ids[row])
        if made is None:
            return {"decided": None}
        return {
            "decided": int(self.decided_N[row]),
            "what": made.what,
            "who": made.who,
            "when": made.when,
            "individual": made.individual,
        }


def _with_drawn_suggestions(folder: RunFolder, report: LabelErrorReport) -> LabelErrorReport:
    """Replace the suggestions that were drawn for measurement, in case a later audit suggests other classes."""
    drawn = read_draw(folder, SUGGESTIONS)
    if drawn is None:
        return report
    code = {name: k for k, name in enumerate(report.class_names)}
    suggested_N: Array = report.suggested_codes.copy()
    for sample_id, suggested in zip(drawn.ids, drawn.suggested, strict=True):
        if sample_id in report.position and suggested in code:
            suggested_N[report.position[sample_id]] = code[suggested]
    return replace(report, suggested_codes=suggested_N)
