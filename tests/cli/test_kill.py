"""kill -9 at random moments: the run that was killed and resumed ends in the same bits as the one left alone."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

KILLS = 10
ARGUMENTS = (
    "train", "digits", "--method", "sat", "--noise", "symmetric:0.4", "--limit", "700", "--epochs", "60",
    "--width", "8", "--augment", "crop-flip", "--resume",
)  # fmt: skip


def _start(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "selfadapt", *ARGUMENTS, "--out", str(folder), "--quiet"])


def _outcome(folder: Path) -> dict[str, Any]:
    """Everything of the run but the time it took."""
    newest = max((folder / "checkpoint").iterdir())
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for record in metrics:
        del record["seconds"]
    return {
        "checkpoint": json.loads((newest / "manifest.json").read_text()),
        "metrics": metrics,
        "labels": (folder / "labels.csv").read_text(),
        "samples": (folder / "samples.csv").read_text(),
    }


def _signature(folder: Path) -> float:
    """Changes when the run saves."""
    checkpoint = folder / "checkpoint"
    return checkpoint.stat().st_mtime if checkpoint.exists() else 0.0


@pytest.mark.slow
def test_killed_equals_undisturbed(tmp_path: Path) -> None:
    assert _start(tmp_path / "whole").wait(timeout=300) == 0
    chance = random.Random(4)
    killed = tmp_path / "killed"
    kills = 0
    while kills < KILLS:
        before = _signature(killed)
        process = _start(killed)
        deadline = time.monotonic() + 120
        while _signature(killed) == before and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.4))
        if process.poll() is not None:
            break
        process.kill()
        process.wait()
        kills += 1
    assert kills == KILLS, "the run must be long enough for ten kills"
    assert _start(killed).wait(timeout=300) == 0
    assert _outcome(killed) == _outcome(tmp_path / "whole")
