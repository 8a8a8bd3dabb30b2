"""Damage to a finished run: every command gives the right answer, or one line that names the file.

In each draw a tiny finished run (on images, on a table, or without labels) is copied, one of its files is damaged, and
one command that reads the run is called in this process. The damage is a changed byte, a file that is cut, emptied,
deleted, or replaced by a link to a file outside, a FIFO or a folder, or a value of a JSON file replaced by one of
another type; in a third of the draws the checksums are removed as well, as a stranger could do. Nothing outside the
folder may change, no command may hang, and none may end in a traceback or in the last handler of the program.
SELFADAPT_DRAWS sets the number of draws, SELFADAPT_SEED the first random number.
"""

import io
import json
import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np

from selfadapt.cli.app import main
from selfadapt.review.journal import Journal
from selfadapt.review.statistics.draws import draw
from selfadapt.run_folder.checksums import NAME as CHECKSUMS
from selfadapt.run_folder.folder import RunFolder
from selfadapt.run_folder.labels_file import read_report
from selfadapt.runs.inspect.review_features import compute_features

DRAWS = int(os.environ.get("SELFADAPT_DRAWS", "2000"))
SEED = int(os.environ.get("SELFADAPT_SEED", "0"))
_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
_OFTEN = {"report": 0.2}  # it draws figures, which takes ten times as long as other commands
_SECONDS = 600  # after which a command counts as hanging

Command = tuple[Sequence[str], Sequence[str]]  # its arguments, and the files that it writes in the run


def _commands(**arguments: Sequence[str]) -> Mapping[str, Command]:
    return {name: ((name, "run", *words), _WRITTEN.get(name, ())) for name, words in arguments.items()}


_WRITTEN = {
    "labels": ("corrected.csv", "decisions.csv"),
    "export": ("resnet-small.safetensors", "resnet18.safetensors"),
    "review": ("decisions.csv",),
    "audit": ("labels.csv", "transition.csv"),
    "coverage": ("coverage.json",),
    "calibrate": ("calibration.json",),
    "attack": ("attack.json",),
    "shift": ("shift.json",),
    "probe": ("probe.json",),
    "report": ("report.html",),
}
_SMALL = ("--width", "4", "--batch-size", "64", "--out", "run", "--quiet")
# By the kind of run: how it is trained, and the commands that read it.
KINDS: Mapping[str, tuple[Sequence[str], Mapping[str, Command]]] = {
    "images": (
        (
            "train", "digits", "--limit", "120", "--test-limit", "40", "--validation", "0.3", "--epochs", "2",
            "--start-epoch", "1", "--noise", "symmetric:0.2", *_SMALL,
        ),
        _commands(
            labels=["--json"],
            predict=["new.npy"],
            export=[],
            review=["--no-browser"],
            audit=["--json"],
            coverage=["--json"],
            calibrate=["--risk", "0.99", "--confidence", "0.5"],
            attack=["--with", "fgsm", "--images", "10", "--no-checks", "--json"],
            shift=["--images", "10", "--json"],
            report=[],
        ),
    ),
    "table": (
        ("train", "table.csv", "--model", "mlp", "--epochs", "2", "--start-epoch", "1", *_SMALL),
        _commands(
            labels=["--json"], predict=["new.csv"], review=["--no-browser"], audit=["--json"], coverage=["--json"],
            report=[],
        ),
    ),
    "pretraining": (
        (
            "pretrain", "digits", "--limit", "100", "--test-limit", "40", "--epochs", "1", "--hidden", "16",
            "--dimensions", "8", *_SMALL,
        ),
        _commands(probe=["--epochs", "1", "--json"], export=[], report=[]),
    ),
}  # fmt: skip
# Files that people edit, or that have a check of their own; and outputs, which no command reads.
UNCHECKED = ("labels.csv", "decisions.csv", "decisions.jsonl", "metrics.jsonl", "corrected.csv", "report.html", ".lock")
DAMAGES = ("byte", "cut", "empty", "delete", "link", "fifo", "folder", "value", "value")
_VALUES: Sequence[Any] = (
    None, True, -1, 0, 10**6, 10**30, 0.5, -1e300, float("nan"), "", "x", "../x", [], [None], {}, {"x": None},
)  # fmt: skip


# Nothing waits for the disk. The server of `review` ends at once, and computes no features in another process.
_REPLACED: Mapping[str, Any] = {
    "os.fsync": lambda descriptor: None,
    "selfadapt.cli.commands.review._serve": lambda app, listener: None,
    "selfadapt.runs.inspect.review_features.FeatureProcess": lambda folder, private: None,
}


def _hanging(number: int, frame: object) -> None:
    raise RuntimeError(f"it takes more than {_SECONDS} seconds")


@dataclass(frozen=True)
class Answer:
    code: int
    output: str
    errors: str
    files: Mapping[str, bytes]


def build(home: Path, kind: str) -> Path:
    """Train a tiny run of this kind in home/finished, and give it every file that the commands write."""
    np.save(home / "new.npy", np.random.default_rng(0).integers(0, 256, (3, 8, 8), np.uint8))
    rows = [
        f"{n},{n % 3}.5,{'xyz'[n // 3 % 3]},{'ab'[n // 40 % 2]},{['train', 'train', 'test'][n % 3]}" for n in range(160)
    ]
    rows += [rows[0].replace("0,", "160,", 1)]  # a duplicate
    (home / "table.csv").write_text("id,size,colour,label,split\n" + "\n".join(rows) + "\n")
    (home / "new.csv").write_text("size,colour\n1.5,x\n2.5,y\n")
    training, commands = KINDS[kind]
    for arguments in (training, *(words for words, _ in commands.values())):
        answer = call(home, arguments)
        if answer.code:
            raise RuntimeError(f"{arguments}: {answer.errors}")
    folder = RunFolder(home / "run")
    if "labels" in commands:
        report = read_report(folder)
        journal = Journal.write(folder.journal_file)
        for row in report.ranked_indices[:4].tolist():
            journal.decide("accept", {report.ids[row]: report.suggested_labels[row]}, who="ann")
        journal.close()
        draw(folder, "train", report, ())
        compute_features(folder, "cpu")
        call(home, ("labels", "run"))
    call(home, ("report", "run"))
    return (home / "run").rename(home / "finished")


def call(home: Path, arguments: Sequence[str], written: Sequence[str] = ()) -> Answer:
    """Call the program in this process, in the folder `home`."""
    output, errors, here, before = io.StringIO(), io.StringIO(), os.getcwd(), sys.argv
    handlers = {number: signal.getsignal(number) for number in _HANDLED}
    os.chdir(home)
    sys.argv = ["selfadapt", *arguments]
    code: Any = None
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        for name, replacement in _REPLACED.items():
            stack.enter_context(patch(name, replacement))
        stack.enter_context(patch("selfadapt.cli.app._COMMANDS", arguments[:1]))  # the others need not be registered
        if arguments[0] != "report":  # which draws the report that the other commands draw as well
            stack.enter_context(patch("selfadapt.report.page.write_run_page"))
        warnings.simplefilter("always")
        signal.signal(signal.SIGALRM, _hanging)
        signal.alarm(_SECONDS)
        try:
            with redirect_stdout(output), redirect_stderr(errors):
                main()
        except SystemExit as stop:
            code = stop.code
        finally:
            signal.alarm(0)
            os.chdir(here)
            sys.argv = before
            for number, handler in handlers.items():
                signal.signal(number, handler)
    files = {name: _content(home / "run" / name) for name in written if (home / "run" / name).is_file()}
    lines = output.getvalue().splitlines()
    return Answer(int(code), "\n".join(line for line in lines if "?token=" not in line), errors.getvalue(), files)


def _content(path: Path) -> bytes:
    """The content of a file; of .safetensors how often each byte occurs, as the order of its metadata varies."""
    content = path.read_bytes()
    if path.suffix == ".safetensors":
        content = np.bincount(np.frombuffer(content, np.uint8), minlength=256).tobytes()
    return content


class Lab:
    """A finished run that is damaged again and again."""

    def __init__(self, home: Path, kind: str = "images") -> None:
        self.home, self.finished, self.all_commands = home, build(home, kind), KINDS[kind][1]
        self.files = sorted(
            path.relative_to(self.finished).as_posix() for path in self.finished.rglob("*") if path.is_file()
        )
        self.outside = home / "outside"
        self._right: dict[str, Answer] = {}

    def _call(self, command: str, damage: Callable[[Path], None] = lambda run: None) -> Answer:
        run = self.home / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(self.finished, run)
        self.outside.write_bytes(b"safe")
        damage(run)
        return call(self.home, *self.all_commands[command])

    def right(self, command: str) -> Answer:
        """The answer of a command about the run as it was."""
        if command not in self._right:
            self._right[command] = self._call(command)
            assert self._right[command].code == 0, self._right[command].errors
        return self._right[command]

    def try_one(self, random: Random, commands: Sequence[str] = ()) -> str:
        """Damage a file, call a command, and return how it ended; raise an AssertionError if that is wrong."""
        names = commands or list(self.all_commands)
        (command,) = random.choices(names, [_OFTEN.get(name, 1) for name in names])
        name, kind = random.choice(self.files), random.choice(DAMAGES)
        stranger = name != CHECKSUMS and random.randrange(3) == 0
        about = f"{command} after {kind} of {name}{' without checksums' if stranger else ''}"

        def damage(run: Path) -> None:
            if stranger:
                (run / CHECKSUMS).unlink()
            _damage(run / name, kind, self.outside, random)

        answer = self._call(command, damage)
        assert self.outside.read_bytes() == b"safe", f"{about} wrote outside of the folder"
        lines = answer.errors.splitlines()
        failures = [line for line in lines if not line.startswith(("warning:", "note:"))]
        if answer.code == 2:
            assert len(failures) == 1, f"{about}: {answer.errors}"
            assert any(part in answer.errors for part in (name, *name.split("/"))), f"{about}: {answer.errors}"
            return "error"
        assert answer.code == 0, f"{about}: exit code {answer.code}, {answer.errors}"
        owned = name not in UNCHECKED and not stranger
        right = self.right(command)
        if owned and (answer.output, answer.files) != (right.output, right.files):
            different = [file for file in right.files if answer.files.get(file) != right.files[file]]
            raise AssertionError(f"{about}: a wrong answer in {different or 'the output'}; {answer.errors}")
        return "right" if owned else "accepted"


def _damage(path: Path, kind: str, outside: Path, random: Random) -> None:
    content = path.read_bytes()
    if kind == "value" and path.suffix in (".json", ".jsonl"):
        path.write_bytes(_other_value(content, path.suffix == ".jsonl", random))
    elif kind in ("byte", "value"):
        if content:
            place = random.randrange(len(content))
            changed = content[place] ^ random.randrange(1, 256)
            path.write_bytes(content[:place] + bytes([changed]) + content[place + 1 :])
    elif kind == "cut":
        path.write_bytes(content[: random.randrange(len(content))] if content else b"")
    elif kind == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()
        if kind == "link":
            path.symlink_to(outside)
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()


def _other_value(content: bytes, by_line: bool, random: Random) -> bytes:
    lines = content.splitlines() if by_line else [content]
    number = random.randrange(len(lines))
    document = [json.loads(lines[number])]
    holder: Any = document
    key: Any = 0
    while isinstance(holder[key], dict | list) and holder[key] and random.randrange(6):
        holder = holder[key]
        key = random.choice(list(holder)) if isinstance(holder, dict) else random.randrange(len(holder))
    if isinstance(holder, dict) and random.randrange(5) == 0:
        del holder[key]
    else:
        holder[key] = random.choice([value for value in _VALUES if type(value) is not type(holder[key])])
    text = json.dumps(document[0])
    deep = random.randrange(40) == 0
    lines[number] = b"[" * 100_000 if deep else text.encode()
    return b"\n".join(lines) + b"\n" * by_line


def run() -> dict[str, float]:
    ended: Counter[str] = Counter()
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as home:
        labs = []
        for kind, share in (("images", 3), ("table", 1), ("pretraining", 1)):
            (Path(home) / kind).mkdir()
            labs += [Lab(Path(home) / kind, kind)] * share
        for number in range(DRAWS):
            try:
                ended[labs[number % len(labs)].try_one(Random(SEED + number))] += 1
            except AssertionError as error:
                failures.append(f"{SEED + number}: {error}")
                print(failures[-1], file=sys.stderr, flush=True)
            if number % 100 == 99:
                print(f"{number + 1} of {DRAWS} draws, {len(failures)} failures", file=sys.stderr, flush=True)
    return {
        "draws": float(DRAWS),
        "right answers of damaged files that the program owns / draws": ended["right"] / DRAWS,
        "one line and exit 2 that names the file / draws": ended["error"] / DRAWS,
        "accepted: files that people edit, or no checksums / draws": ended["accepted"] / DRAWS,
        "failures": float(len(failures)),
    }
