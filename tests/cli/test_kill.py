"""kill -9 at random moments: the run that was killed and resumed ends in the same bits as the one left alone.

The benchmark `kills` does it fifty times, each with a fresh program.
"""

import json
import random
import statistics
import time
from pathlib import Path

import pytest

from cli.program import outcome
from forks import PATIENCE, Program

KILLS = 4
ARGUMENTS = (
    "train", "digits", "--method", "sat", "--noise", "symmetric:0.4", "--limit", "700", "--epochs", "24",
    "--width", "8", "--augment", "crop-flip", "--resume", "--quiet",
)  # fmt: skip


def _start(folder: Path) -> Program:
    return Program(*ARGUMENTS, "--out", folder, folder=folder.parent)


def _signature(folder: Path) -> float:
    """Changes when the run saves."""
    checkpoint = folder / "checkpoint"
    return checkpoint.stat().st_mtime if checkpoint.exists() else 0.0


@pytest.mark.slow
def test_killed_equals_undisturbed(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    assert _start(whole).wait() == 0
    epoch = statistics.median(
        json.loads(line)["seconds"] for line in (whole / "metrics.jsonl").read_text().splitlines()
    )
    chance = random.Random(4)
    killed = tmp_path / "killed"
    kills = 0
    while kills < KILLS:
        before = _signature(killed)
        process = _start(killed)
        deadline = time.monotonic() + PATIENCE
        while _signature(killed) == before and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.005)
        time.sleep(chance.uniform(0, epoch))
        if process.poll() is not None:
            break
        process.kill()
        process.wait()
        kills += 1
    assert kills == KILLS, "the run must be long enough for so many kills"
    assert _start(killed).wait() == 0
    assert outcome(killed) == outcome(whole)
