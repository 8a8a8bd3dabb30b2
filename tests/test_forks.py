"""A fork of the server does what a fresh program does."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from cli.program import Result, fresh_process, process
from forks import PATIENCE, Program, fork
from salt import unsalted

ARGUMENTS = ("train", "digits", "--limit", "100", "--model", "mlp", "--epochs", "2", "--noise", "symmetric:0.4")


@unsalted
def test_a_training_ends_in_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as the server has it; sums depend on it

    def outcome(result: Result, name: str) -> tuple[object, ...]:
        folder = tmp_path / name
        (newest, *_) = sorted(folder.glob("checkpoint/*/manifest.json"), reverse=True)
        files = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
        words = result.stdout.replace(name, "NAME"), result.stderr
        return result.returncode, words, files, newest.read_bytes(), (folder / "labels.csv").read_bytes()

    forked = process(*ARGUMENTS, "--out", "forked", folder=tmp_path)
    fresh = fresh_process(*ARGUMENTS, "--out", "fresh", folder=tmp_path)
    assert fresh.returncode == 0, fresh.stderr
    assert outcome(forked, "forked") == outcome(fresh, "fresh")


def _look_around(path: Path) -> None:
    seen = {
        "folder": os.getcwd(),
        "word": os.environ.get("SELFADAPT_WORD"),
        "handlers": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
        "server": [task.read_text().strip() for task in Path(f"/proc/{os.getppid()}/task").glob("*/comm")],
        "loaded": Path(f"/proc/{os.getppid()}/maps").read_text().count("libtorch_cpu") > 0,
    }
    path.write_text(json.dumps(seen))


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_it_begins_as_a_fresh_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for word in ("one", "two"):
        monkeypatch.setenv("SELFADAPT_WORD", word)
        process = fork(_look_around, tmp_path / "seen.json", folder=tmp_path)
        process.join(PATIENCE)
        assert process.exitcode == 0
        seen = json.loads((tmp_path / "seen.json").read_text())
        assert seen["folder"] == str(tmp_path)
        assert seen["word"] == word
        assert seen["handlers"] == [str(signal.default_int_handler), *2 * [str(signal.SIG_DFL)]]
        assert seen["loaded"], "the server must have torch"
        threads = [name for name in seen["server"] if name != "jemalloc_bg_thd"]  # which knows about forks
        assert len(threads) == 1, "a thread of the server is missing in its forks"


def test_it_can_be_killed(tmp_path: Path) -> None:
    program = Program(*ARGUMENTS, "--epochs", "1000", "--out", "run", folder=tmp_path)
    assert program.poll() is None
    program.kill()
    assert program.wait() == -signal.SIGKILL
