"""Concurrent trainings: each has its own slot, and a GPU by it."""

import sys
from pathlib import Path

import pytest
import torch

from selfadapt.core.progress import no_progress
from selfadapt.engine.jobs import launch_each
from selfadapt.runs.lifecycle.environment import choose_device


def test_the_place_of_one_that_ended_is_taken_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python, places = tmp_path / "python", tmp_path / "places"
    places.touch()
    waits = f'while [ "$(wc -l < {places})" -lt "$3" ]; do sleep 0.05; done'  # until so many others have ended
    python.write_text(f'#!/bin/sh\n{waits}\necho "$LOCAL_RANK $SELFADAPT_JOBS" >> {places}\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert launch_each([["2"], ["0"], ["0"]], 2, no_progress) is None
    assert places.read_text().splitlines() == ["1 2", "1 2", "0 2"]


@pytest.mark.parametrize(
    ("jobs", "place", "gpu"),
    [
        pytest.param("4", 1, 1, id="a job takes the GPU of its place"),
        pytest.param("4", 3, 1, id="and shares one where there are more jobs than GPUs"),
        pytest.param(None, 3, 3, id="processes of one training never share one"),
    ],
)
def test_gpu_of_a_process(monkeypatch: pytest.MonkeyPatch, jobs: str | None, place: int, gpu: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", str(place))
    if jobs:
        monkeypatch.setenv("SELFADAPT_JOBS", jobs)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)  # what tries whether the GPU is there
    assert choose_device("auto") == torch.device("cuda", gpu)
