"""Processes that are lost or stopped change nothing in the run that they resume."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from cli.program import outcome, process, run_json
from forks import Program
from selfadapt.data.batch import Batch
from selfadapt.engine.fit import Training

pytestmark = pytest.mark.distributed
ARGUMENTS = (
    "train", "digits", "--limit", "300", "--model", "mlp", "--epochs", "6", "--noise", "symmetric:0.4",
    "--batch-size", "50", "--devices", "2",
)  # fmt: skip


def _send_signals(at: set[tuple[int, int, int]], number: signal.Signals, to_launcher: bool) -> None:
    """At these attempts, epochs and ranks, in the middle of the epoch, a process signals itself or its launcher."""
    take_step = Training.take_step

    def signalling(self: Training, batch: Batch) -> None:
        place = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), self.epoch, int(os.environ["RANK"])
        if place in at and self.step == 2:
            os.kill(os.getppid() if to_launcher else os.getpid(), number)
        take_step(self, batch)

    Training.take_step = signalling  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.parametrize("targets", ["float32", "sharded:float16"])
def test_lost_processes_change_nothing(targets: str, tmp_path: Path) -> None:
    """kill -9 ends one of two processes twice; the launcher restarts both, and every bit is as undisturbed."""
    arguments = (*ARGUMENTS, "--targets", targets)
    run_json(*arguments, "--out", "whole", folder=tmp_path, program=process)
    lost = partial(_send_signals, {(0, 1, 0), (1, 3, 1)}, signal.SIGKILL, to_launcher=False)
    program = Program(*arguments, "--out", "killed", folder=tmp_path, patch=lost)
    _, errors = program.communicate()
    assert program.returncode == 0, errors
    assert errors.count("; restarting") == 2
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")


@pytest.mark.slow
def test_a_signal_stops_all_and_the_run_goes_on(tmp_path: Path) -> None:
    run_json(*ARGUMENTS, "--out", "whole", folder=tmp_path, program=process)
    stopped = partial(_send_signals, {(0, 2, 1)}, signal.SIGTERM, to_launcher=True)
    program = Program(*ARGUMENTS, "--out", "stopped", folder=tmp_path, patch=stopped)
    _, errors = program.communicate()
    assert program.returncode == 130, errors
    assert "--resume" in errors
    run_json("train", "--resume", "--out", "stopped", "--devices", "2", folder=tmp_path, program=process)
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")
