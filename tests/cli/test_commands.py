"""The program as a user runs it: output, exit codes, interruptions."""

import io
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import selfadapt
from selfadapt.cli.app import main

SMALL = ("--limit", "300", "--model", "mlp", "--epochs", "3", "--noise", "symmetric:0.4")


@dataclass(frozen=True)
class Result:
    returncode: int
    stdout: str
    stderr: str


def _process(*arguments: str | Path, folder: Path) -> Result:
    """The program in a process of its own."""
    command = [sys.executable, "-m", "selfadapt", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300)
    return Result(result.returncode, result.stdout, result.stderr)


def _run(*arguments: str | Path, folder: Path) -> Result:
    """The program in this process, which saves the seconds that torch takes to start."""
    words, errors = io.StringIO(), io.StringIO()
    handler, warn = signal.getsignal(signal.SIGINT), warnings.showwarning
    here, before = os.getcwd(), sys.argv
    os.chdir(folder)
    sys.argv = ["selfadapt", *map(str, arguments)]
    try:
        with redirect_stdout(words), redirect_stderr(errors), pytest.raises(SystemExit) as stop:
            main()
    finally:
        os.chdir(here)
        sys.argv, warnings.showwarning = before, warn
        signal.signal(signal.SIGINT, handler)
    assert isinstance(stop.value.code, int)
    return Result(stop.value.code, words.getvalue(), errors.getvalue())


def _json(*arguments: str | Path, folder: Path, run: Callable[..., Result] = _run) -> dict[str, Any]:
    result = run(*arguments, "--json", folder=folder)
    assert result.returncode == 0, result.stderr
    content: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return content


def test_help_is_quick_and_has_an_example(tmp_path: Path) -> None:
    seconds = []
    for _ in range(3):
        began = time.monotonic()
        result = _process("--help", folder=tmp_path)
        seconds.append(time.monotonic() - began)
        assert result.returncode == 0
    # The claim is half a second on an idle machine; a test may share the cores.
    assert min(seconds) < 1.0
    for command in ("demo", "train", "audit", "report"):
        assert f"Example: selfadapt {command}" in _run(command, "--help", folder=tmp_path).stdout


def test_version(tmp_path: Path) -> None:
    assert _process("--version", folder=tmp_path).stdout.strip() == selfadapt.__version__


def test_train_audit_report(tmp_path: Path) -> None:
    result = _json("train", "digits", "--method", "sat", *SMALL, "--out", "one", folder=tmp_path)
    expected = {
        "run", "method", "epochs", "test_accuracy", "validation_accuracy", "label_recovery", "noise", "start_epoch",
        "seconds", "images_per_second",
    }  # fmt: skip
    assert expected <= set(result)
    assert set(result["noise"]) == {"kind", "nominal", "actual"}
    before = (tmp_path / "one" / "labels.csv").read_bytes()
    audit = _json("audit", "one", folder=tmp_path)
    keys = {"suspects", "estimated_noise_rate", "labels", "precision", "recall", "recovery", "average_precision"}
    assert keys <= set(audit)
    assert audit["recovery"] == result["label_recovery"]
    assert (tmp_path / "one" / "labels.csv").read_bytes() == before
    ordinary = _json("train", "digits", "--method", "erm", *SMALL, "--out", "two", folder=tmp_path)
    assert ordinary["start_epoch"] is None
    assert ordinary["noise"] == result["noise"]
    assert _json("audit", "two", folder=tmp_path)["recovery"] == ordinary["label_recovery"]
    page = _json("report", "one", "two", "--out", "both.html", folder=tmp_path)["report"]
    assert "one/report.html" in (tmp_path / page).read_text(encoding="utf-8")


def test_words_for_people(tmp_path: Path) -> None:
    result = _run("train", "digits", *SMALL, folder=tmp_path)
    assert result.returncode == 0
    assert "test accuracy (last epoch)" in result.stdout
    assert result.stderr == ""
    assert (tmp_path / "runs" / "digits-sat" / "report.html").exists()
    second = _run("train", "digits", *SMALL, folder=tmp_path)
    assert "runs/digits-sat-2/report.html" in second.stdout
    assert "suspect labels" in _run("audit", "runs/digits-sat", folder=tmp_path).stdout


@pytest.mark.parametrize("targets", ["float16", "file"])
def test_other_target_stores(targets: str, tmp_path: Path) -> None:
    result = _json("train", "digits", *SMALL, "--targets", targets, "--out", "run", folder=tmp_path)
    plain = _json("train", "digits", *SMALL, "--out", "plain", folder=tmp_path)
    assert result["test_accuracy"] == pytest.approx(plain["test_accuracy"], abs=0.02 if targets == "float16" else 1e-9)


def test_arrays_train(npz_file: Path, tmp_path: Path) -> None:
    result = _json("train", npz_file, "--epochs", "5", "--width", "4", "--out", "run", folder=tmp_path)
    assert result["test_accuracy"] > 0.9
    assert result["label_recovery"] is None
    assert result["noise"] is None
    assert "precision" not in _json("audit", "run", folder=tmp_path)


MISTAKES = {
    "cannot open data 'dgits'": ("train", "dgits"),
    "no DATA given": ("train",),
    "--method 'magic' is not known; choose one of erm, sat": ("train", "digits", "--method", "magic"),
    "is not KIND:RATE": ("train", "digits", "--noise", "symmetric:7"),
    "--epochs 0 must be at least 1": ("train", "digits", "--epochs", "0"),
    "--lr -1.0 must not be negative": ("train", "digits", "--lr", "-1"),
    "--momentum 2.0 must be within 0..1": ("train", "digits", "--momentum", "2"),
    "--targets 'int3' is not known": ("train", "digits", "--targets", "int3"),
    "--model 'brain' is not known": ("train", "digits", "--model", "brain"),
    "--augment 'twirl' is not known": ("train", "digits", "--augment", "twirl"),
    "--device 'tpu9' cannot be used here": ("train", "digits", "--device", "tpu9"),
    "--resume needs --out": ("train", "digits", "--resume"),
    "at least two are needed": ("train", "digits", "--limit", "1"),
    "full is not empty; give another --out": ("train", "digits", "--out", "full"),
    "full is not a run folder": ("audit", "full"),
    "nowhere is not a run folder": ("report", "nowhere"),
    "full/thing cannot be used as a run folder": ("train", "digits", "--out", "full/thing"),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_gets_one_clear_line(message: str, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thing").write_text("mine")
    result = _run(*MISTAKES[message], folder=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert (tmp_path / "full" / "thing").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"], "nothing may be left behind"


def test_a_mistake_shows_no_traceback(tmp_path: Path) -> None:
    result = _process("train", "nowhere.npz", folder=tmp_path)
    assert result == Result(2, "", "error: there is no file nowhere.npz\n")


def test_a_run_is_not_overwritten_and_not_resumed_as_another(tmp_path: Path) -> None:
    _json("train", "digits", *SMALL, "--out", "run", folder=tmp_path)
    again = _run("train", "digits", *SMALL, "--out", "run", folder=tmp_path)
    assert again.returncode == 2
    assert "add --resume to go on with it" in again.stderr
    other = _run("train", "digits", *SMALL, "--seed", "7", "--out", "run", "--resume", folder=tmp_path)
    assert other.returncode == 2
    assert "was started with --seed 0, not 7" in other.stderr


def test_resuming_a_finished_run_gives_its_result(tmp_path: Path) -> None:
    first = _json("train", "digits", *SMALL, "--out", "run", "--resume", folder=tmp_path)
    second = _json("train", "--out", "run", "--resume", folder=tmp_path)
    assert first == second


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_exits_130(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "selfadapt", "train", "digits", "--epochs", "500", "--out", "run"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_text()):
        time.sleep(0.05)
    time.sleep(0.3)
    os.kill(process.pid, number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "go on with: selfadapt train --resume --out run" in errors
    assert "Traceback" not in errors
    steps = max(path.name for path in (tmp_path / "run" / "checkpoint").iterdir())
    assert not steps.endswith("-0000000"), "it stopped in the middle of an epoch"


def test_diverging_training_stops_with_exit_code_1(tmp_path: Path) -> None:
    result = _run("train", "digits", *SMALL, "--optimizer", "adam", "--lr", "1e30", "--out", "run", folder=tmp_path)
    assert result.returncode == 1
    assert "the loss is not finite in epoch" in result.stderr
    assert "digits/" in result.stderr


@pytest.mark.slow
def test_the_demo_keeps_its_promise(tmp_path: Path) -> None:
    result = _json("demo", folder=tmp_path, run=_process)
    assert set(result) >= {"data", "noise", "methods", "seconds", "report"}
    erm, sat = result["methods"]["erm"], result["methods"]["sat"]
    assert set(erm) == set(sat) == {"test_accuracy", "best_validation_accuracy", "label_recovery"}
    assert sat["test_accuracy"] >= erm["test_accuracy"] + 0.04
    assert sat["label_recovery"] >= 0.98
    assert result["seconds"] < 90
    assert (tmp_path / result["report"]).exists()
