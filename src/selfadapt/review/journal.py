"""The journal of decisions, decisions.jsonl: one line each, append-only; the last line about a sample counts.

    {"line": 1, "when": "2026-11-17T08:30:11Z", "who": "ann", "queue": "work", "what": "accept", "labels": {"7": "cat"}}
    {"line": 2, "when": "2026-11-17T08:30:19Z", "who": "ann", "what": "undo", "undoes": 1}

A label of null removes the sample. A line with one label is an individual decision, a line with several is not. The
key "at_once" marks the exceptions: one label that was left of several (true), and duplicates that were shown side by
side (false). A line is on disk before it is confirmed. A line without a line break was cut short by a crash before it
was confirmed, and is ignored.

Nothing is confirmed once another program has cut, replaced or removed the file. What was confirmed before is then
written to decisions-rescued.jsonl when the journal is closed.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, Literal, get_args

from selfadapt.core.atomic_files import atomic_write, fsync_path
from selfadapt.core.errors import UserError
from selfadapt.core.file_lock import is_file_at, release_lock, take_lock

What = Literal["accept", "keep", "choose", "remove", "import"]
Queue = Literal["work", "measure"]


class JournalLost(UserError):
    """Another program has cut, replaced or removed the file while it was open."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The decision about one sample."""

    label: str | None  # None removes the sample
    what: str
    who: str
    when: str
    line: int
    individual: bool  # not decided together with others


@dataclass
class Journal:
    """The lines of the file, and the decisions that follow from them."""

    path: Path
    lines: list[dict[str, Any]] = field(default_factory=list)
    _current: dict[str, list[Decision]] = field(default_factory=dict, repr=False)  # by sample, without undone ones
    _undone: set[int] = field(default_factory=set, repr=False)
    _descriptor: int = field(default=-1, repr=False)  # -1 if the journal is read-only
    _size: int = field(default=0, repr=False)  # in bytes, of all confirmed lines
    _lock: Lock = field(default_factory=Lock, repr=False)

    @classmethod
    def read(cls, path: Path) -> "Journal":
        """Read the journal; an empty one if the file does not exist."""
        journal = cls(path)
        journal._parse(path.read_bytes() if path.exists() else b"")
        return journal

    @classmethod
    def write(cls, path: Path) -> "Journal":
        """Open the journal for appending, with an exclusive lock."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o644)
        if not take_lock(descriptor, path):
            os.close(descriptor)
            raise UserError(f"another review is writing {path}; continue there, or stop it first")
        journal = cls(path, _descriptor=descriptor)
        journal._size = journal._parse(path.read_bytes())
        os.ftruncate(descriptor, journal._size)
        fsync_path(path.parent)  # so that the name of a new file survives a crash
        return journal

    def close(self) -> None:
        """Close the file.

        Raises:
            JournalLost: If another program has damaged the file. The confirmed lines are then in `rescue_path`.
        """
        if self._descriptor < 0:
            return
        try:
            self.check_intact()
        except JournalLost:
            with atomic_write(self.rescue_path) as file:
                file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in self.lines)
            raise
        finally:
            os.close(self._descriptor)
            release_lock(self.path)
            self._descriptor = -1

    @property
    def rescue_path(self) -> Path:
        """The first free name; files that were rescued before are kept."""
        path = self.path.with_name("decisions-rescued.jsonl")
        numbers = count(2)
        while path.exists():
            path = self.path.with_name(f"decisions-rescued-{next(numbers)}.jsonl")
        return path

    def check_intact(self) -> None:
        """Raise JournalLost unless the file is in its place and as long as its confirmed lines."""
        if not is_file_at(self._descriptor, self.path) or os.fstat(self._descriptor).st_size != self._size:
            raise JournalLost(
                f"{self.path} was changed, replaced or removed by another program during this review, so nothing more "
                f"can be saved; stop the review, and its {len(self.lines)} confirmed lines are in {self.rescue_path}, "
                f"which you can rename to {self.path.name}"
            )

    @property
    def decisions(self) -> dict[str, Decision]:
        """The current decision of each sample."""
        return {sample_id: current[-1] for sample_id, current in list(self._current.items()) if current}

    def decision(self, sample_id: str) -> Decision | None:
        current = self._current.get(sample_id)
        return current[-1] if current else None

    def decide(
        self,
        what: What,
        labels: Mapping[str, str | None],
        *,
        who: str,
        queue: Queue = "work",
        at_once: bool | None = None,
    ) -> int:
        """Append a decision about these samples and return its line number. It is on disk by then.

        `at_once` says that the samples were not reviewed one by one. Default: True for several samples.

        Raises:
            JournalLost: If another program has damaged the file.
        """
        mark = {} if at_once in (None, len(labels) > 1) else {"at_once": at_once}
        with self._lock:
            return self._append({"who": who, "queue": queue, "what": what, **mark, "labels": dict(labels)})

    def undo(self, *, who: str) -> dict[str, Any] | None:
        """Undo the last line that was not undone yet and return it; None if there is none."""
        with self._lock:
            last = next((own for own in reversed(self.lines) if self._can_be_undone(own)), None)
            if last is not None:
                self._append({"who": who, "what": "undo", "undoes": last["line"]})
            return last

    def _can_be_undone(self, line: Mapping[str, Any]) -> bool:
        return line["what"] != "undo" and line["line"] not in self._undone

    def _append(self, content: Mapping[str, Any]) -> int:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        line = {"line": len(self.lines) + 1, "when": now, **content}
        data = memoryview(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        self.check_intact()
        before, self._size = self._size, self._size + len(data)
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
            os.fsync(self._descriptor)
            self.check_intact()
        except OSError:
            self._size = before
            os.ftruncate(self._descriptor, before)  # leave no part of a line that is not confirmed
            raise
        self._apply(line)
        return len(self.lines)

    def _parse(self, content: bytes) -> int:
        """Apply all whole lines and return their size in bytes."""
        whole = content.rfind(b"\n") + 1
        for number, text in enumerate(content[:whole].split(b"\n")[:-1], start=1):
            try:
                line = json.loads(text)
                self._check(line, number)
            except (ValueError, RecursionError) as error:
                raise UserError(
                    f"{self.path}, line {number} is damaged ({error}); restore the line, or remove it and all lines "
                    "after it, which undoes their decisions"
                ) from error
            self._apply(line)
        return whole

    def _check(self, line: Any, number: int) -> None:
        """Raise a ValueError that says why this cannot be the line of this number."""
        if not isinstance(line, dict):
            raise ValueError("it is not a JSON object")
        if type(line.get("line")) is not int or line["line"] != number:
            raise ValueError(f"its number is {line.get('line')!r:.40}")
        what, labels, undoes = (line.get(name) for name in ("what", "labels", "undoes"))
        for name in ("who", "when"):
            if not isinstance(line.get(name), str):
                raise ValueError(f"{name} must be a text")
        if what == "undo":
            if type(undoes) is not int or not 0 < undoes < number or not self._can_be_undone(self.lines[undoes - 1]):
                raise ValueError(f"decision {undoes!r:.40} cannot be undone")
        elif what not in get_args(What):
            raise ValueError(f"what must be undo or one of {', '.join(get_args(What))}")
        elif not isinstance(labels, dict) or not all(own is None or isinstance(own, str) for own in labels.values()):
            raise ValueError("labels must hold a class or null for each sample")

    def _apply(self, line: dict[str, Any]) -> None:
        if line["what"] == "undo":
            number = line["undoes"]
            self._undone.add(number)
            for sample_id in self.lines[number - 1]["labels"]:
                current = self._current[sample_id]
                current[:] = [own for own in current if own.line != number]
        else:
            individual = line["what"] != "import" and not line.get("at_once", len(line["labels"]) > 1)
            for sample_id, label in line["labels"].items():
                made = Decision(
                    label=label,
                    what=line["what"],
                    who=line["who"],
                    when=line["when"],
                    line=line["line"],
                    individual=individual,
                )
                self._current.setdefault(sample_id, []).append(made)
        self.lines.append(line)
