"""The run folder: which files it holds and how they are written and read.

run.json        settings, versions, seed, data fingerprint, noise nominal and actual; the result once there is one
metrics.jsonl   a line for each finished epoch
samples.csv     each training and validation sample: id, path, part, given label, truth, whether noise changed its image
unreadable.csv  files that could not be read and were left out, if there are any
checkpoint/     everything that is needed to go on
trainings/      likewise, by name, for a method that takes several trainings
backbone.safetensors  the pretrained network whose features the head learns from, if it does
targets*.bin    the targets, where they are kept in a file
labels.csv      the verdict on each label of every split, most likely wrong first
duplicates.csv  each member of a group of duplicates: the number of the group, id, path, part, given label, kind
transition.csv  the estimated odds of each given label (column) for each true class (row)
decisions.jsonl  what people decided about labels, a line for each decision, if there was any
decisions.csv   the same as a table; or, while the journal is empty, what somebody wrote by hand: id and label
review/         samples that were drawn to measure by, and features by which similar samples are found
corrected.csv   the corrected labels, once they are asked for
trained-on.csv  the corrected labels that this run was trained on, if it was
coverage.json   the error at each coverage, for a method that abstains or once it is asked for
calibration.json  the threshold below which predict abstains, once there is one, and what it guarantees
probe.json      what linear evaluation found, by the data that it used, for a run without labels
transfer.json   what detection and segmentation with its features came to
transfer/       one that was stopped, to go on from
attack.json     robust accuracy by attack, once it is asked for
networks/       the network after the first and the best epoch of a curve under attack
attacks/        what became of each image under them, to go on from
shift.json      accuracy under corruption, by kind and level, once it is asked for
shifts/         each of these accuracies as it was measured, to go on from
features/       features that were taken once, by the images they are of; classifiers on augmented images, to go on from
figures/        the figures of the page, as SVG
report.html     the page
"""

import csv
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast, get_args

from selfadapt.core import distributed
from selfadapt.core.atomic_files import atomic_write
from selfadapt.core.errors import UserError
from selfadapt.data.duplicates.groups import DuplicateGroup
from selfadapt.data.duplicates.near_duplicates import Kind

_VERDICT = ("id", "path", "part", "given", "suggested", "confidence", "weight", "suspect", "outsider")
_SINCE = ("predicted", "p_wrong", "runner_up", "duplicate_group", "reason", "relative_path")  # older files lack them
LABEL_COLUMNS = (*_VERDICT, *_SINCE, "truth")
DUPLICATE_COLUMNS = ("group", "id", "path", "part", "given", "kind")
SAMPLE_COLUMNS = ("id", "path", "part", "given", "truth", "corrupted")
FORMAT = 2  # of run.json and the files beside it; 1 had no number
_LOCKED: set[Path] = set()  # folders in which this process trains
_BEFORE_THE_START = re.compile(r"\.lock|\.draft-.*|samples\.csv|unreadable\.csv|trained-on\.csv|targets(\.\d+)?\.bin")


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def settings_file(self) -> Path:
        return self.path / "run.json"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def samples_file(self) -> Path:
        return self.path / "samples.csv"

    @property
    def unreadable_file(self) -> Path:
        return self.path / "unreadable.csv"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoint"

    @property
    def trainings(self) -> Path:
        return self.path / "trainings"

    @property
    def has_checkpoint(self) -> bool:
        return self.checkpoints.is_dir() and any(not path.name.startswith(".") for path in self.checkpoints.iterdir())

    @property
    def backbone_file(self) -> Path:
        return self.path / "backbone.safetensors"

    @property
    def targets_file(self) -> Path:
        return self.path / "targets.bin"

    @property
    def labels_file(self) -> Path:
        return self.path / "labels.csv"

    @property
    def decisions_file(self) -> Path:
        return self.path / "decisions.csv"

    @property
    def journal_file(self) -> Path:
        return self.path / "decisions.jsonl"

    @property
    def review(self) -> Path:
        return self.path / "review"

    def draw_file(self, of: str) -> Path:
        return self.review / f"{of}.csv"

    @property
    def trained_on_file(self) -> Path:
        return self.path / "trained-on.csv"

    @property
    def transition_file(self) -> Path:
        return self.path / "transition.csv"

    @property
    def duplicates_file(self) -> Path:
        return self.path / "duplicates.csv"

    @property
    def coverage_file(self) -> Path:
        return self.path / "coverage.json"

    @property
    def probe_file(self) -> Path:
        return self.path / "probe.json"

    @property
    def transfer_file(self) -> Path:
        return self.path / "transfer.json"

    @property
    def attack_file(self) -> Path:
        return self.path / "attack.json"

    @property
    def attacks(self) -> Path:
        return self.path / "attacks"

    def network_file(self, moment: str) -> Path:
        return self.path / "networks" / f"{moment}.safetensors"

    @property
    def shifts(self) -> Path:
        return self.path / "shifts"

    @property
    def shift_file(self) -> Path:
        return self.path / "shift.json"

    @property
    def calibration_file(self) -> Path:
        return self.path / "calibration.json"

    @property
    def figures(self) -> Path:
        return self.path / "figures"

    @property
    def suspects_sheet(self) -> Path:
        return self.figures / "suspects.svg"

    @property
    def duplicates_sheet(self) -> Path:
        return self.figures / "duplicates.svg"

    @property
    def page(self) -> Path:
        return self.path / "report.html"

    @property
    def exists(self) -> bool:
        return self.settings_file.exists()

    def check_free(self) -> None:
        """Say why the folder cannot be the home of a new run, if so. What a broken start left is no hindrance."""
        if distributed.rank() == 0 and (
            self.exists or not all(_BEFORE_THE_START.fullmatch(path.name) for path in self.path.iterdir())
        ):
            remedy = "add --resume to go on with it, or give another --out" if self.exists else "give another --out"
            raise UserError(f"{self.path} is not empty; {remedy}")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training in this folder while the block runs; a block within such a one may nest.

        The folder is made if there is none. It goes again if no run was begun in it and nothing else is there.
        """
        place = self.path.resolve()
        made = [path for path in (place, *place.parents) if not path.exists()]
        if distributed.rank() or place in _LOCKED:
            yield
            return
        with self._lock() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.path.samestat(os.fstat(file.fileno()), os.stat(file.name)):  # removed by its last holder
                    raise FileNotFoundError
            except (BlockingIOError, FileNotFoundError):
                raise UserError(
                    f"another process is training in {self.path}; wait for it or give another --out"
                ) from None
            _LOCKED.add(place)
            try:
                yield
            finally:
                _LOCKED.remove(place)
                if not self.exists:
                    (place / ".lock").unlink(missing_ok=True)
                    with suppress(OSError):
                        for path in made:
                            path.rmdir()

    def _lock(self) -> IO[str]:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            return open(self.path / ".lock", "w")
        except OSError as error:
            raise UserError(f"{self.path} cannot be used as a run folder: {error.strerror or error}") from error

    def write_run(self, content: Mapping[str, Any]) -> None:
        with atomic_write(self.settings_file) as file:
            json.dump({"format": FORMAT, **content}, file, indent=2)

    def read_run(self) -> dict[str, Any]:
        try:
            content = json.loads(self.settings_file.read_text(encoding="utf-8"))
            if content.get("format", 1) != FORMAT:
                raise UserError(
                    f"{self.path} was made by another version of selfadapt (format {content.get('format', 1)}, this "
                    f"one reads {FORMAT}); train it anew in another folder, or use that version"
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

    def write_coverage(self, content: Mapping[str, Any]) -> None:
        with atomic_write(self.coverage_file) as file:
            json.dump(content, file)

    def write_probe(self, content: Mapping[str, Any]) -> None:
        with atomic_write(self.probe_file) as file:
            json.dump(content, file, indent=2)

    def write_transfer(self, content: Mapping[str, Any]) -> None:
        with atomic_write(self.transfer_file) as file:
            json.dump(content, file, indent=2)

    def write_calibration(self, content: Mapping[str, Any]) -> None:
        with atomic_write(self.calibration_file) as file:
            json.dump(content, file, indent=2)

    def write_attack(self, content: Mapping[str, Any]) -> None:
        with atomic_write(self.attack_file) as file:
            json.dump(content, file, indent=2)

    def write_outcome(self, key: str, content: Mapping[str, Any]) -> None:
        self.attacks.mkdir(exist_ok=True)
        with atomic_write(self.attacks / f"{key}.json") as file:
            json.dump(content, file)

    def write_accuracies(self, key: str, content: Mapping[str, float]) -> None:
        self.shifts.mkdir(exist_ok=True)
        with atomic_write(self.shifts / f"{key}.json") as file:
            json.dump(content, file)

    def write_shift(self, content: Mapping[str, Any]) -> None:
        with atomic_write(self.shift_file) as file:
            json.dump(content, file, indent=2)

    def forget_calibration(self) -> None:
        self.calibration_file.unlink(missing_ok=True)

    def read_if_there(self, path: Path) -> dict[str, Any] | None:
        """A file of this folder as JSON; None if it was never written."""
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise UserError(f"{path} is damaged: {error}; remove it and make it anew") from error

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        if distributed.rank():
            return
        with open(self.metrics_file, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def read_metrics(self) -> list[dict[str, Any]]:
        """The finished epochs. A line that a crash cut short is not one."""
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
        """Drop the lines past so many epochs, as a resumed run will write them again."""
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
        """The samples of the run, as they were written down when it began."""
        rows = self.read_samples()
        if self.samples_sha256() != self.read_run()["data"]["samples_sha256"]:
            raise UserError(f"{self.samples_file} was changed after the run began; restore it")
        return rows

    def write_unreadable(self, rows: Iterable[tuple[str, str]]) -> None:
        write_table(self.unreadable_file, ("id", "reason"), rows)

    def read_unreadable(self) -> dict[str, str]:
        """The files that could not be read, by id, and why."""
        rows = read_table(self.unreadable_file, ("id", "reason")) if self.unreadable_file.exists() else []
        return {row["id"]: row["reason"] for row in rows}

    def forget_unreadable(self) -> None:
        if distributed.rank() == 0:
            self.unreadable_file.unlink(missing_ok=True)

    def write_labels(self, rows: Iterable[Sequence[str]], *, truth_known: bool) -> None:
        write_table(self.labels_file, LABEL_COLUMNS if truth_known else LABEL_COLUMNS[:-1], rows)

    def read_labels(self) -> list[dict[str, str]]:
        """What the audit found; columns that an older file lacks are empty."""
        rows = read_table(self.labels_file, _VERDICT)
        lacking = dict.fromkeys(() if not rows else (name for name in _SINCE if name not in rows[0]), "")
        return [{**lacking, **row} for row in rows] if lacking else rows

    def write_duplicates(self, rows: Iterable[Sequence[str]]) -> None:
        write_table(self.duplicates_file, DUPLICATE_COLUMNS, rows)

    def read_duplicates(self) -> list[DuplicateGroup[str]]:
        """The groups of duplicates, by id. Older files do not name the kind; all they list counted as one image."""
        members: dict[str, list[str]] = {}
        kinds: dict[str, Kind] = {}
        if self.duplicates_file.exists():
            for row in read_table(self.duplicates_file, DUPLICATE_COLUMNS[:-1]):
                members.setdefault(row["group"], []).append(row["id"])
                kinds[row["group"]] = _kind(row.get("kind") or "same image", self.duplicates_file)
        return [DuplicateGroup(tuple(own), kinds[group]) for group, own in members.items()]

    def write_transition(self, classes: Sequence[str], rows: Sequence[Sequence[float]]) -> None:
        lines = ([name, *(f"{odds:.6f}" for odds in row)] for name, row in zip(classes, rows, strict=True))
        write_table(self.transition_file, ["true", *classes], lines)

    def read_transition(self) -> list[list[float]]:
        with open(self.transition_file, encoding="utf-8", newline="") as file:
            return [[float(odds) for odds in row[1:]] for row in list(csv.reader(file))[1:]]


def _kind(text: str, path: Path) -> Kind:
    if text in get_args(Kind):
        return cast(Kind, text)
    raise UserError(f"{path}: {text!r} is not a kind of duplicate; known are: {', '.join(get_args(Kind))}")


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A .csv with a line of column names."""
    with atomic_write(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        careful = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        writer.writerow(columns)
        for row in rows:
            # Before Python 3.13 a carriage return alone is not quoted, and reads as the end of the row.
            (careful if any("\r" in value for value in row) else writer).writerow(row)


def read_table(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """The rows of a .csv that must have these columns."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:  # a spreadsheet may have put a mark in front
            reader = csv.DictReader(file)
            missing = [column for column in columns if column not in (reader.fieldnames or ())]
            if missing:
                raise UserError(f"{path} lacks the column {missing[0]}; keep its columns and the commas between them")
            rows = list(reader)
    except FileNotFoundError:
        raise UserError(f"there is no {path}; was the run stopped before it was written?") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as a .csv file in UTF-8: {error}") from None
    short = next((number for number, row in enumerate(rows, 2) if None in row.values()), None)
    if short is not None:
        raise UserError(f"{path}, line {short} has too few values")
    return rows
