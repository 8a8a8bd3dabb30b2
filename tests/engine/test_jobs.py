"""Concurrent trainings: each has its own slot."""

import sys
from pathlib import Path

import pytest

from selfadapt.core.progress import no_progress
from selfadapt.engine.jobs import launch_each


def test_the_place_of_one_that_ended_is_taken_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python, places = tmp_path / "python", tmp_path / "places"
    places.touch()
    waits = f'while [ "$(wc -l < {places})" -lt "$3" ]; do sleep 0.05; done'  # until so many others have ended
    python.write_text(f'#!/bin/sh\n{waits}\necho "$LOCAL_RANK $SELFADAPT_JOBS" >> {places}\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert launch_each([["2"], ["0"], ["0"]], 2, no_progress) is None
    assert places.read_text().splitlines() == ["1 2", "1 2", "0 2"]
