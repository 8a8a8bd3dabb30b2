"""The desk of a review: which samples to look at, what is known of each, and decisions about them. It knows no web.

A row is a line of labels.csv, the most suspicious being 0. What was decided about it is a number: that of a class,
REMOVED, or UNDECIDED.
"""

from collections.abc import Sequence
from dataclasses import replace
from threading import Lock
from typing import Any, get_args

import numpy as np

from selfadapt.review.conflicts import conflicts_of
from selfadapt.review.decisions import open_journal, read_decisions, write_decisions
from selfadapt.review.journal import Queue, What
from selfadapt.review.row_filter import BadRequest, Filter
from selfadapt.review.statistics.draws import SUGGESTIONS, Draw, draw, read_draw
from selfadapt.review.statistics.label_figures import figures_of, read_draws
from selfadapt.review.statistics.measured import further_looks, looked_at, promise, review_part
from selfadapt.run_folder.folder import RunFolder
from selfadapt.run_folder.labels_file import Column, Verdicts

UNDECIDED, REMOVED = -1, -2
OUTSIDER = 0.5  # six deviations out, see evaluation/label_errors/outliers.py
_MOST_PAIRS = 500  # class pairs that can be chosen from, the most frequent first
_DECISIONS = tuple(what for what in get_args(What) if what != "import")


class Desk:
    """One run's review. Whoever holds it is the only one who writes decisions."""

    def __init__(self, folder: RunFolder, who: str) -> None:
        self.folder, self.who = folder, who
        self.verdicts = _as_drawn(folder, Verdicts.of(folder))
        read_decisions(folder)  # refuses what names no class
        self.journal = open_journal(folder)
        self.decided_N = np.full(len(self.verdicts), UNDECIDED, np.int32)
        self.copies_N = np.zeros(len(self.verdicts), np.int32)  # the number of its group of duplicates, from 1
        for number, group in enumerate(folder.read_duplicates(), start=1):
            for sample_id in group.members:
                row = self.verdicts.place.get(sample_id)
                if row is not None:
                    self.copies_N[row] = number
        self.conflicts = {row: own for own in conflicts_of(self.verdicts, folder.read_duplicates()) for row in own.rows}
        self._class = {name: k for k, name in enumerate(self.verdicts.classes)}
        self._lock = Lock()
        for sample_id in self.journal.decisions:
            self._note(sample_id)

    def close(self) -> int:
        """Write the table for people, and return how many samples are decided."""
        decisions = self.journal.decisions
        write_decisions(self.folder, decisions, self.folder.read_labels())
        self.journal.close()
        return len(decisions)

    def about(self) -> dict[str, Any]:
        """What the page needs to know at the beginning."""
        own, run = self.verdicts, self.folder.read_run()
        suspects = np.flatnonzero(own.suspect_N)
        pairs, counts = np.unique(
            own.given_N[suspects].astype(np.int64) * len(own.classes) + own.suggested_N[suspects], return_counts=True
        )
        frequent = np.argsort(-counts, kind="stable")[:_MOST_PAIRS]
        return {
            "run": self.folder.path.name,
            "data": run["data"]["name"],
            "classes": list(own.classes),
            "parts": {
                part: int((own.part_N == k).sum()) for k, part in enumerate(own.parts) if (own.part_N == k).any()
            },
            "pairs": [
                [*divmod(int(pair), len(own.classes)), int(count)]
                for pair, count in zip(pairs[frequent], counts[frequent], strict=True)
            ],
            "labels": len(own),
            "suspects": len(suspects),
            "duplicates": int((self.copies_N > 0).sum()),
            "outsiders": int((own.outsider_N >= OUTSIDER).sum()),
            "line": len(self.journal.lines),
        }

    def counts(self) -> dict[str, int]:
        """How far the work is."""
        decided_N = self.decided_N != UNDECIDED
        return {
            "line": len(self.journal.lines),
            "decided": int(decided_N.sum()),
            "suspects_decided": int((decided_N & self.verdicts.suspect_N).sum()),
        }

    def figures(self) -> dict[str, Any]:
        """What is known of the labels, as `selfadapt audit` and report.html show it."""
        return figures_of(self.verdicts, self.journal.decisions, read_draws(self.folder)).to_json()

    def rows(self, wanted: Filter) -> list[int]:
        """The rows to work on, in their order."""
        own = self.verdicts
        chosen_N = {
            "suspects": own.suspect_N,
            "duplicates": self.copies_N > 0,
            "outsiders": own.outsider_N >= OUTSIDER,
            "every": np.ones(len(own), bool),
        }[wanted.of].copy()
        if wanted.state != "any":
            chosen_N &= (self.decided_N == UNDECIDED) == (wanted.state == "undecided")
        if wanted.part is not None:
            if wanted.part not in own.parts:
                raise BadRequest(f"there is no part {wanted.part!r}")
            chosen_N &= own.part_N == own.parts.index(wanted.part)
        if wanted.given is not None:
            chosen_N &= own.given_N == wanted.given
        if wanted.suggested is not None:
            chosen_N &= own.suggested_N == wanted.suggested
        rows = np.flatnonzero(chosen_N)
        if wanted.search:
            text = wanted.search.lower()
            rows = np.array([row for row in rows.tolist() if text in own.ids[row].lower()], np.int64)
        if wanted.of == "duplicates":
            rows = rows[np.argsort(self.copies_N[rows], kind="stable")]
        if wanted.sort == "class":
            rows = rows[np.lexsort((rows, own.suggested_N[rows], own.given_N[rows]))]
        return self._items(rows.tolist())

    def _items(self, rows: Sequence[int]) -> list[int]:
        """The rows, of duplicates with different labels only the first: they are one item."""
        first: dict[int, int] = {}
        return [row for row in rows if first.setdefault(self._members(row)[0], row) == row]

    def _members(self, row: int) -> tuple[int, ...]:
        """The rows of the item: duplicates with different labels, or the row alone."""
        conflict = self.conflicts.get(row)
        return (row,) if conflict is None else conflict.rows

    def decided_of(self, rows: Sequence[int]) -> list[int]:
        """Those of these rows that are decided."""
        return [row for row in rows if self.decided_N[row] != UNDECIDED]

    def summary(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """What there is to know of these rows."""
        own = self.verdicts
        self._check(rows)
        return [
            {
                "row": row,
                "id": own.ids[row],
                "path": own.paths[row],
                "part": own.parts[own.part_N[row]],
                "given": int(own.given_N[row]),
                "suggested": int(own.suggested_N[row]),
                "suspect": bool(own.suspect_N[row]),
                "confidence": round(float(own.confidence_N[row]), 4),
                "outsider": bool(own.outsider_N[row] >= OUTSIDER),
                "copies": int((self.copies_N == self.copies_N[row]).sum()) if self.copies_N[row] else 0,
                "conflict": self._conflict(row),
                **self._decision(row),
            }
            for row in rows
        ]

    def decide(self, what: str, rows: Sequence[int], label: int | None = None, queue: str = "work") -> dict[str, Any]:
        """Decide about these rows at once; of several, those that are decided already stay as they are.

        Duplicates with different labels are decided together, but to measure. What comes back is on the disk.
        """
        own = self.verdicts
        self._check(rows)
        if not rows:
            raise BadRequest("no sample was named")
        if what not in _DECISIONS or queue not in get_args(Queue):
            raise BadRequest(
                f"what must be one of {', '.join(_DECISIONS)}, and queue one of {', '.join(get_args(Queue))}"
            )
        if queue == "measure" and len(rows) > 1:
            raise BadRequest("to measure, each sample must be looked at by itself")
        if what == "choose" and (type(label) is not int or not 0 <= label < len(own.classes)):
            raise BadRequest("choose needs the number of a class")
        with self._lock:
            several = len(rows) > 1
            if queue == "work":
                rows = list(dict.fromkeys(member for row in rows for member in self._members(row)))
            open_rows = [row for row in rows if self.decided_N[row] == UNDECIDED] if several else rows
            if not open_rows:
                raise BadRequest("all of these are decided already; undo that, or decide about one by itself")
            labels: dict[str, str | None] = {}
            for row in open_rows:
                number = {"accept": own.suggested_N[row], "keep": own.given_N[row], "choose": label}.get(what)
                labels[own.ids[row]] = None if number is None else own.classes[int(number)]
            self.journal.decide(what, labels, who=self.who, queue=queue, at_once=several)  # type: ignore[arg-type]
            return self._noted(labels)

    def undo(self) -> dict[str, Any]:
        """Take back the last decision that stands."""
        with self._lock:
            line = self.journal.undo(who=self.who)
            noted = self._noted([] if line is None else line["labels"])
        undone = None if line is None else {key: line[key] for key in ("line", "when", "who", "what")}
        return {**noted, "undone": undone}

    def changes(self, after: int) -> dict[str, Any]:
        """What changed in the journal after this line, whoever changed it."""
        changed: set[str] = set()
        lines = list(self.journal.lines)
        for line in lines[max(0, after) :]:
            changed.update(lines[line["undoes"] - 1]["labels"] if line["what"] == "undo" else line["labels"])
        return {**self._noted(changed), "line": len(lines)}

    def draw(self, of: str) -> dict[str, Any]:
        """The rows of a sample to measure by, in their order. It is drawn if it was not yet."""
        if of != SUGGESTIONS and of not in self.about()["parts"]:
            raise BadRequest(f"there is no {of!r} to draw from")
        with self._lock:
            made = draw(self.folder, of, self.verdicts, self.journal.decisions)
        place = self.verdicts.place
        rows = [place[sample_id] for sample_id in made.in_turn if sample_id in place]
        return {"of": of, "rows": rows, "looked_at": looked_at(made, self.journal.decisions)}

    def measured(self, precision: float, confidence: float) -> dict[str, Any]:
        """What the samples that were drawn say so far."""
        if not (0 < precision <= 1 and 0 < confidence < 1):
            raise BadRequest("precision and confidence must be between 0 and 1")
        decisions = self.journal.decisions
        drawn = read_draw(self.folder, SUGGESTIONS)
        content: dict[str, Any] = {"precision": precision, "confidence": confidence, "suggestions": None, "parts": []}
        if drawn is not None:
            found = promise(drawn, decisions, confidence)
            held = found.deepest(precision)
            content["suggestions"] = {
                **found.to_json(),
                "holds": None if held is None else found.depths.index(held),
                "further": further_looks(found, precision),
            }
        else:
            train_N = self.verdicts.part_N == self.verdicts.parts.index("train")
            open_N = self.verdicts.suspect_N & train_N & (self.decided_N == UNDECIDED)
            content["population"] = int(open_N.sum())
        for part in self.about()["parts"]:
            own = read_draw(self.folder, part)
            reviewed = review_part(self.verdicts, part, decisions, own, confidence)
            content["parts"].append({**reviewed.to_json(), "drawn": own is not None})
        return content

    def _conflict(self, row: int) -> list[dict[str, Any]]:
        """The members of the row's group of duplicates with different labels."""
        own, conflict = self.verdicts, self.conflicts.get(row)
        if conflict is None:
            return []
        return [
            {
                "row": member,
                "id": own.ids[member],
                "part": own.parts[own.part_N[member]],
                "given": int(own.given_N[member]),
                "disagrees": member in conflict.disagreeing,
            }
            for member in conflict.rows
        ]

    def _check(self, rows: Sequence[int]) -> None:
        for row in rows:
            if not isinstance(row, int) or isinstance(row, bool) or not 0 <= row < len(self.verdicts):
                raise BadRequest(f"there is no row {row!r}")

    def _noted(self, changed: Any) -> dict[str, Any]:
        """Take note of these samples, and tell how far the work is and what stands for each."""
        rows = [row for row in map(self._note, changed) if row is not None]
        return {**self.counts(), "rows": {row: self._decision(row) for row in rows}}

    def _note(self, sample_id: str) -> int | None:
        row = self.verdicts.place.get(sample_id)
        if row is not None:
            made = self.journal.decision(sample_id)
            if made is None:
                self.decided_N[row] = UNDECIDED
            else:
                self.decided_N[row] = REMOVED if made.label is None else self._class[made.label]
        return row

    def _decision(self, row: int) -> dict[str, Any]:
        made = self.journal.decision(self.verdicts.ids[row])
        if made is None:
            return {"decided": None}
        return {
            "decided": int(self.decided_N[row]),
            "what": made.what,
            "who": made.who,
            "when": made.when,
            "looked_at": made.looked_at,
        }


def _as_drawn(folder: RunFolder, verdicts: Verdicts) -> Verdicts:
    """Verdicts with the suggestions that were drawn to be measured, should a later audit suggest something else."""
    drawn: Draw | None = read_draw(folder, SUGGESTIONS)
    if drawn is None:
        return verdicts
    number = {name: k for k, name in enumerate(verdicts.classes)}
    suggested_N: Column = verdicts.suggested_N.copy()
    for sample_id, suggested in zip(drawn.ids, drawn.suggested, strict=True):
        row = verdicts.place.get(sample_id)
        if row is not None and suggested in number:
            suggested_N[row] = number[suggested]
    return replace(verdicts, suggested_N=suggested_N)
