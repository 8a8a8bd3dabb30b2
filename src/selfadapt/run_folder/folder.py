"""The run folder: reading and writing its files (paths.py lists them)."""

import csv
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from selfadapt.core import distributed
from selfadapt.core.atomic_files import atomic_write
from selfadapt.core.errors import UserError
from selfadapt.core.regular_files import check_tree
from selfadapt.data.duplicates.groups import DuplicateGroup
from selfadapt.data.duplicates.near_duplicates import Kind
from selfadapt.run_folder.csv_tables import read_table, write_table
from selfadapt.run_folder.json_files import read_json, write_json
from selfadapt.run_folder.lock import folder_lock
from selfadapt.run_folder.paths import RunPaths

_FIRST_COLUMNS = ("id", "path", "part", "given", "suggested", "confidence", "weight", "suspect", "outsider")
_LATER_COLUMNS = ("predicted", "p_wrong", "runner_up", "duplicate_group", "reason", "relative_path")  # not in old files
LABEL_COLUMNS = (*_FIRST_COLUMNS, *_LATER_COLUMNS, "truth")
DUPLICATE_COLUMNS = ("group", "id", "path", "part", "given", "kind")
SAMPLE_COLUMNS = ("id", "path", "part", "given", "truth", "corrupted")
FORMAT = 2  # of run.json and the files beside it; format 1 had no number
_BEFORE_THE_START = re.compile(
    r"\.lock|\.draft-.*|data|data\.csv|data\.npz|samples\.csv|unreadable\.csv|trained-on\.csv|targets(\.\d+)?\.bin"
)


@dataclass(frozen=True)
class RunFolder(RunPaths):
    """A run on disk."""

    write_json = staticmethod(write_json)
    read_if_there = staticmethod(read_json)

    def check_free(self) -> None:
        """Raise a UserError if a new run cannot be started here. Files of an aborted start do not matter."""
        if distributed.rank() == 0 and (
            self.exists or not all(_BEFORE_THE_START.fullmatch(path.name) for path in self.path.iterdir())
        ):
            remedy = "add --resume to resume it, or give another --out" if self.exists else "give another --out"
            raise UserError(f"{self.path} is not empty; {remedy}")

    def locked(self) -> AbstractContextManager[None]:
        """Keep other processes from training here. A folder in which no run was started is removed again."""
        return folder_lock(self.path, lambda: self.exists)

    def write_run(self, content: Mapping[str, Any]) -> None:
        write_json(self.settings_file, {"format": FORMAT, **content})

    def read_run(self) -> dict[str, Any]:
        try:
            check_tree(self.path)
            content = json.loads(self.settings_file.read_text(encoding="utf-8"))
            if content.get("format", 1) != FORMAT:
                raise UserError(
                    f"{self.path} was made by another version of selfadapt (format {content.get('format', 1)}, this "
                    f"one reads {FORMAT}); train again in another folder, or use that version"
                )
            missing = {"settings", "data", "noise", "start_epoch"} - set(content)
            if missing:
                raise ValueError(f"it lacks {', '.join(sorted(missing))}")
            return dict(content)
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(
                f"{self.path} is not a run folder: it has no run.json; give the folder that train made"
            ) from None
        except ValueError as error:
            raise UserError(f"{self.settings_file} is damaged: {error}") from error

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        if distributed.rank():
            return
        with open(self.metrics_file, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def read_metrics(self) -> list[dict[str, Any]]:
        """Read the finished epochs. A line that was cut off by a crash is dropped."""
        if not self.metrics_file.exists():
            return []
        records = []
        for line in self.metrics_file.read_text(encoding="utf-8").splitlines():
            try:
                records.append(json.loads(line))
            except ValueError:
                break
        return records

    def forget_metrics_after(self, epochs: int) -> None:
        """Keep the first `epochs` lines; a resumed run writes the others again."""
        kept = self.read_metrics()[:epochs]
        with atomic_write(self.metrics_file) as file:
            file.writelines(json.dumps(record) + "\n" for record in kept)

    def write_samples(self, rows: Iterable[Sequence[str]]) -> None:
        write_table(self.samples_file, SAMPLE_COLUMNS, rows)

    def read_samples(self) -> list[dict[str, str]]:
        return read_table(self.samples_file, SAMPLE_COLUMNS)

    def samples_sha256(self) -> str:
        return hashlib.sha256(self.samples_file.read_bytes()).hexdigest()

    def recorded_samples(self) -> list[dict[str, str]]:
        """Read the samples, and raise a UserError if the file was changed after the run started."""
        rows = self.read_samples()
        if self.samples_sha256() != self.read_run()["data"]["samples_sha256"]:
            raise UserError(f"{self.samples_file} was changed after the run started; restore it")
        return rows

    def write_unreadable(self, rows: Iterable[tuple[str, str]]) -> None:
        write_table(self.unreadable_file, ("id", "reason"), rows)

    def read_unreadable(self) -> dict[str, str]:
        """Read why files could not be read, by id."""
        rows = read_table(self.unreadable_file, ("id", "reason")) if self.unreadable_file.exists() else []
        return {row["id"]: row["reason"] for row in rows}

    def forget_unreadable(self) -> None:
        if distributed.rank() == 0:
            self.unreadable_file.unlink(missing_ok=True)

    def write_labels(self, rows: Iterable[Sequence[str]], *, truth_known: bool) -> None:
        write_table(self.labels_file, LABEL_COLUMNS if truth_known else LABEL_COLUMNS[:-1], rows)

    def read_labels(self) -> list[dict[str, str]]:
        """Read labels.csv. Columns that older files lack are empty."""
        rows = read_table(self.labels_file, _FIRST_COLUMNS)
        missing = dict.fromkeys((name for name in _LATER_COLUMNS if rows and name not in rows[0]), "")
        return [{**missing, **row} for row in rows] if missing else rows

    def write_duplicates(self, rows: Iterable[Sequence[str]]) -> None:
        write_table(self.duplicates_file, DUPLICATE_COLUMNS, rows)

    def read_duplicates(self) -> list[DuplicateGroup[str]]:
        """Read the groups of duplicates, by id. Older files have no column `kind`: all are of the same image."""
        members: dict[str, list[str]] = {}
        kinds: dict[str, Kind] = {}
        if self.duplicates_file.exists():
            for row in read_table(self.duplicates_file, DUPLICATE_COLUMNS[:-1]):
                members.setdefault(row["group"], []).append(row["id"])
                kinds[row["group"]] = _kind(row.get("kind") or "same image", self.duplicates_file)
        return [DuplicateGroup(tuple(own), kinds[group]) for group, own in members.items()]

    def write_transition(self, classes: Sequence[str], rows: Sequence[Sequence[float]]) -> None:
        """Write the probability of each given label (column) for each true class (row)."""
        lines = ([name, *(f"{p:.6f}" for p in row)] for name, row in zip(classes, rows, strict=True))
        write_table(self.transition_file, ["true", *classes], lines)

    def read_transition(self) -> list[list[float]]:
        with open(self.transition_file, encoding="utf-8", newline="") as file:
            return [[float(p) for p in row[1:]] for row in list(csv.reader(file))[1:]]


def _kind(text: str, path: Path) -> Kind:
    if text in get_args(Kind):
        return cast(Kind, text)
    raise UserError(f"{path}: {text!r} is not a kind of duplicates; choose one of {', '.join(get_args(Kind))}")
