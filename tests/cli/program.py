"""Running the program in tests, from the quickest to the most real: in this process, in a fork, as a fresh program."""

import io
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from forks import PATIENCE, Program
from selfadapt.cli.app import main
from selfadapt.data.batch import Batch
from selfadapt.engine.fit import Training


@dataclass(frozen=True)
class Result:
    returncode: int
    stdout: str
    stderr: str


def process(*arguments: str | Path, folder: Path) -> Result:
    """The program in a process of its own, with torch already loaded."""
    program = Program(*arguments, folder=folder)
    words, errors = program.communicate()
    return Result(program.wait(), words, errors)


def fresh_process(*arguments: str | Path, folder: Path) -> Result:
    """The program as a user starts it. It takes seconds to begin, so only tests that need that use it."""
    command = [sys.executable, "-m", "selfadapt", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=PATIENCE)
    return Result(result.returncode, result.stdout, result.stderr)


def run(*arguments: str | Path, folder: Path) -> Result:
    """The program in this process, which saves the seconds that torch takes to start."""
    words, errors = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    warn = warnings.showwarning
    here, before = os.getcwd(), sys.argv
    os.chdir(folder)
    sys.argv = ["selfadapt", *map(str, arguments)]
    try:
        with redirect_stdout(words), redirect_stderr(errors), pytest.raises(SystemExit) as stop:
            main()
    finally:
        os.chdir(here)
        sys.argv, warnings.showwarning = before, warn
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert isinstance(stop.value.code, int)
    return Result(stop.value.code, words.getvalue(), errors.getvalue())


def run_json(*arguments: str | Path, folder: Path, program: Callable[..., Result] = run) -> dict[str, Any]:
    result = program(*arguments, "--json", folder=folder)
    assert result.returncode == 0, result.stderr
    content: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return content


@contextmanager
def signal_after(steps: int) -> Iterator[None]:
    """SIGTERM comes while `run` trains, in the middle of the step with this number."""
    taken = 0
    ordinary = Training.take_step

    def take_step(self: Training, *given: Any) -> None:
        nonlocal taken
        taken += 1
        if taken == steps:
            signal.raise_signal(signal.SIGTERM)
        ordinary(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "take_step", take_step)
        yield


def outcome(folder: Path) -> dict[str, Any]:
    """Everything of a run but the time it took; a checkpoint's manifest holds the hashes of its files."""
    newest = max((folder / "checkpoint").iterdir())
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for record in metrics:
        del record["seconds"], record["crc32"]  # which covers the seconds
    return {
        "checkpoint": json.loads((newest / "manifest.json").read_text()),
        "metrics": metrics,
        "labels": (folder / "labels.csv").read_text(),
        "samples": (folder / "samples.csv").read_text(),
    }


def stopped_after(
    steps: int,
    monkeypatch: pytest.MonkeyPatch,
    start: Callable[[], Any],
    at: dict[int, Callable[[], None]] | None = None,
) -> None:
    """Interrupt a run after so many steps of training; `at` other steps, something else happens."""
    take_step, taken = Training.take_step, 0

    def counted(self: Training, batch: Batch) -> None:
        nonlocal taken
        take_step(self, batch)
        taken += 1
        (at or {}).get(taken, lambda: None)()
        if taken == steps:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(Training, "take_step", counted)
        assert start().returncode == 130
