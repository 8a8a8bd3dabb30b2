"""The journal of decisions, decisions.jsonl: a line for each, only ever appended to; the last line about a sample wins.

    {"line": 1, "when": "2026-11-17T08:30:11Z", "who": "ann", "queue": "work", "what": "accept", "labels": {"7": "cat"}}
    {"line": 2, "when": "2026-11-17T08:30:19Z", "who": "ann", "what": "undo", "undoes": 1}

A label of null means that the sample is to be removed. Labels that were decided together were not looked at one by
one, and a label by itself was; "at_once" says so where it is the other way: one label was left of several (true), or
several are of duplicates that were seen side by side (false). A line is on the disk before anybody hears of it. One
that a crash cut short has no end of line; nobody was told of it, and it does not count.
"""

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any, Literal, get_args

from selfadapt.core.errors import UserError

What = Literal["accept", "keep", "choose", "remove", "import"]
Queue = Literal["work", "measure"]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What was decided about one sample."""

    label: str | None  # None if it is to be removed
    what: str
    who: str
    when: str
    line: int
    looked_at: bool  # it was decided by itself, not with others at once


@dataclass
class Journal:
    """The lines that there are, and what they come to."""

    path: Path
    lines: list[dict[str, Any]] = field(default_factory=list)
    _standing: dict[str, list[Decision]] = field(default_factory=dict, repr=False)  # those that were not undone
    _undone: set[int] = field(default_factory=set, repr=False)
    _descriptor: int | None = field(default=None, repr=False)
    _lock: Lock = field(default_factory=Lock, repr=False)

    @classmethod
    def read(cls, path: Path) -> "Journal":
        """The journal as it is, to look at; an empty one if there is none."""
        journal = cls(path)
        journal._take(path.read_bytes() if path.exists() else b"")
        return journal

    @classmethod
    def write(cls, path: Path) -> "Journal":
        """The journal to go on with. Nobody else may write it meanwhile."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise UserError(f"another review writes {path}; go on there, or stop it first") from None
        journal = cls(path, _descriptor=descriptor)
        whole = journal._take(path.read_bytes())
        os.ftruncate(descriptor, whole)
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)  # the name of a new file is to be there after a crash, too
        os.close(folder)
        return journal

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    @property
    def decisions(self) -> dict[str, Decision]:
        """What stands, by sample."""
        return {sample_id: standing[-1] for sample_id, standing in list(self._standing.items()) if standing}

    def decision(self, sample_id: str) -> Decision | None:
        standing = self._standing.get(sample_id)
        return standing[-1] if standing else None

    def decide(
        self,
        what: What,
        labels: Mapping[str, str | None],
        *,
        who: str,
        queue: Queue = "work",
        at_once: bool | None = None,
    ) -> int:
        """Decide about these samples; returns the number of the line, which is on the disk by then.

        `at_once` says whether nobody looked at each of them; if not given, it is so of several.
        """
        mark = {} if at_once in (None, len(labels) > 1) else {"at_once": at_once}
        return self._append({"who": who, "queue": queue, "what": what, **mark, "labels": dict(labels)})

    def undo(self, *, who: str) -> dict[str, Any] | None:
        """Take back the last line that stands, whoever wrote it, and return it; None if there is none."""
        with self._lock:
            last = next((own for own in reversed(self.lines) if self._stands(own)), None)
            if last is not None:
                self._append_locked({"who": who, "what": "undo", "undoes": last["line"]})
            return last

    def _stands(self, line: Mapping[str, Any]) -> bool:
        return line["what"] != "undo" and line["line"] not in self._undone

    def _append(self, content: Mapping[str, Any]) -> int:
        with self._lock:
            return self._append_locked(content)

    def _append_locked(self, content: Mapping[str, Any]) -> int:
        assert self._descriptor is not None, "the journal was opened to be read"
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        line = {"line": len(self.lines) + 1, "when": now, **content}
        data = memoryview(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        begin = os.fstat(self._descriptor).st_size
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
            os.fsync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, begin)  # nothing of a line that nobody will hear of
            raise
        self._count(line)
        return len(self.lines)

    def _take(self, content: bytes) -> int:
        """Count all whole lines; returns how many bytes they are."""
        whole = content.rfind(b"\n") + 1
        for number, text in enumerate(content[:whole].split(b"\n")[:-1], start=1):
            try:
                line = json.loads(text)
                self._check(line, number)
            except (ValueError, RecursionError) as error:
                raise UserError(
                    f"{self.path}, line {number} is damaged ({error}); restore the line, or remove it and all lines "
                    "after it, which takes back what they decided"
                ) from error
            self._count(line)
        return whole

    def _check(self, line: Any, number: int) -> None:
        """Raise a ValueError that says why this cannot be the line of this number, if so."""
        if not isinstance(line, dict):
            raise ValueError("it is no JSON object")
        if type(line.get("line")) is not int or line["line"] != number:
            raise ValueError(f"it says that it is line {line.get('line')!r:.40}")
        what, labels, undoes = (line.get(name) for name in ("what", "labels", "undoes"))
        for name in ("who", "when"):
            if not isinstance(line.get(name), str):
                raise ValueError(f"{name} must be a text")
        if what == "undo":
            if type(undoes) is not int or not 0 < undoes < number or not self._stands(self.lines[undoes - 1]):
                raise ValueError(f"there is no decision {undoes!r:.40} to undo")
        elif what not in get_args(What):
            raise ValueError(f"what must be undo or one of {', '.join(get_args(What))}")
        elif not isinstance(labels, dict) or not all(own is None or isinstance(own, str) for own in labels.values()):
            raise ValueError("labels must hold a class or null for each sample")

    def _count(self, line: dict[str, Any]) -> None:
        if line["what"] == "undo":
            number = line["undoes"]
            self._undone.add(number)
            for sample_id in self.lines[number - 1]["labels"]:
                standing = self._standing[sample_id]
                standing[:] = [own for own in standing if own.line != number]
        else:
            looked_at = line["what"] != "import" and not line.get("at_once", len(line["labels"]) > 1)
            for sample_id, label in line["labels"].items():
                made = Decision(
                    label=label,
                    what=line["what"],
                    who=line["who"],
                    when=line["when"],
                    line=line["line"],
                    looked_at=looked_at,
                )
                self._standing.setdefault(sample_id, []).append(made)
        self.lines.append(line)
