"""The processes of --devices under torch's elastic agent; shell scripts stand in for the program."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup

from forks import PATIENCE
from selfadapt.core.errors import INTERRUPTED, Interrupted
from selfadapt.engine import elastic
from selfadapt.engine.elastic import launch


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Where the processes write a line each: rank, attempt, process, and process of a child that outlives them."""
    path = tmp_path / "notes"
    path.touch()
    return path


def _program(notes: Path, monkeypatch: pytest.MonkeyPatch, code: str, before_the_note: str = "") -> None:
    """Let `launch` start this script. Its child must be gone in the end."""
    program = notes.with_name("program")
    note = f'echo "$RANK $TORCHELASTIC_RESTART_COUNT $$ $!" >> {notes}'
    program.write_text(f"#!/bin/sh\nsleep 300 &\n{before_the_note}\n{note}\n{code}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


def _attempts(notes: Path) -> list[tuple[int, int]]:
    """Attempt and rank of each process that was started; none of them, or of their children, may be there still."""
    lines = [[int(word) for word in line.split()] for line in notes.read_text().splitlines()]
    for process in (process for line in lines for process in line[2:]):
        deadline = time.monotonic() + PATIENCE
        while _is_running(process) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not _is_running(process)
    return sorted((attempt, rank) for rank, attempt, *_ in lines)


def _is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # a child of a process that is gone belongs to init, which may be slow to collect it


def test_processes_that_succeed(
    notes: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    _program(notes, monkeypatch, 'kill $!; echo "$WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $*"')
    assert launch(2, ["train", "x"]) == 0
    assert _attempts(notes) == [(0, 0), (0, 1)]
    assert capfd.readouterr() == ("2 2 127.0.0.1 -m selfadapt train x\n" * 2, "")
    assert launch(2, ["train"], prints=False) == 0
    assert capfd.readouterr() == ("", "")
    assert {number: signal.getsignal(number) for number in before} == before
    assert "SELFADAPT_LAUNCHER" not in os.environ


def test_a_process_that_fails_stops_all(
    notes: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is not started again, and one that ignores the signal to stop is killed."""
    monkeypatch.setattr(elastic, "_FAIL_SECONDS", 0.2)
    _program(notes, monkeypatch, '[ "$RANK" = 1 ] && { echo "error: of rank 1" >&2; exit 2; }; trap "" TERM; sleep 300')
    assert launch(2, ["train"]) == 2
    assert _attempts(notes) == [(0, 0), (0, 1)]
    assert capfd.readouterr().err == "error: of rank 1\n"


def test_a_lost_process_restarts_all(
    notes: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lose = '[ "$RANK" = 1 ] && [ "$TORCHELASTIC_RESTART_COUNT" -lt {} ] && kill -9 $$'
    _program(notes, monkeypatch, lose.format(2) + '; [ "$TORCHELASTIC_RESTART_COUNT" = 2 ] || sleep 300; kill $!')
    assert launch(2, ["train"]) == 0
    assert _attempts(notes) == [(attempt, rank) for attempt in range(3) for rank in range(2)]
    assert capfd.readouterr().err == "a process was lost (SIGKILL); restarting\n" * 2
    notes.write_text("")
    _program(notes, monkeypatch, lose.format(9) + "; sleep 300")
    assert launch(2, ["train"]) == 1
    assert len(_attempts(notes)) == 8
    *restarts, last = capfd.readouterr().err.splitlines()
    assert (len(restarts), last) == (3, "error: a process was lost (SIGKILL) too often")


def test_a_signal_lets_the_processes_save(
    notes: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each gets the signal once, its workers do not, and what is left of them is killed."""
    monitor = elastic._Agent._monitor_workers

    def interrupted(self: elastic._Agent, group: WorkerGroup) -> RunResult:
        if len(notes.read_text().splitlines()) == 2:
            signal.raise_signal(signal.SIGINT)
        return monitor(self, group)

    monkeypatch.setattr(elastic._Agent, "_monitor_workers", interrupted)
    save = 'kill -0 $! && echo "saved" >> "$0.saved"; exit 130'
    _program(notes, monkeypatch, "while true; do sleep 0.05; done", before_the_note=f"trap '{save}' TERM")
    assert launch(2, ["train"]) == INTERRUPTED
    assert (notes.with_name("program.saved")).read_text() == "saved\n" * 2
    assert _attempts(notes) == [(0, 0), (0, 1)]
    notes.write_text("")
    _program(notes, monkeypatch, "sleep 300")  # they do not know yet what to save
    with pytest.raises(Interrupted):
        launch(2, ["train"])
    assert len(_attempts(notes)) == 2
    assert capfd.readouterr().err == ""
