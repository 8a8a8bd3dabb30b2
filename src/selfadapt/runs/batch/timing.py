"""Time the trials of a recipe side by side, instead of training them to the end."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from selfadapt.core.device import choose_device
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.engine.fit import Training
from selfadapt.engine.phases import Phases, median_ratio, time_side_by_side
from selfadapt.recipes.recipe import Timing, Trial
from selfadapt.runs.batch.result_cache import cached_result
from selfadapt.runs.config.request import Request
from selfadapt.runs.lifecycle.environment import commit
from selfadapt.runs.lifecycle.lifecycle import open_and_plan
from selfadapt.runs.lifecycle.threads import set_useful_threads
from selfadapt.runs.train.build_training import build_training

Times = dict[str, dict[str, Any]]  # of each trial by name


def time_trials(
    trials: Sequence[Trial], timing: Timing, seed: int, file: Path, on_progress: ProgressCallback = no_progress
) -> Times:
    """Measure the time of a step of each trial, by phase; the times are cached in `file`.

    The result of a trial has milliseconds per image, and its time relative to each other trial: medians over turns.
    """
    asked = {
        "timing": asdict(timing),
        "seed": seed,
        "trials": {trial.name: {"kind": trial.kind, **trial.settings} for trial in trials},
    }
    return cached_result(file, asked, "times", lambda: _measured(trials, timing, seed, file.name, on_progress))


def _measured(
    trials: Sequence[Trial], timing: Timing, seed: int, file_name: str, on_progress: ProgressCallback
) -> Times:
    start = time.monotonic()
    trainings = _trainings(trials, seed)
    turns = time_side_by_side(trainings, **asdict(timing), on_progress=on_progress)
    by_image = {name: [turn.scaled(1000 / _images(trainings[name])) for turn in own] for name, own in turns.items()}
    shared = {"threads": torch.get_num_threads(), "seconds": round(time.monotonic() - start, 3)}
    times = {}
    for trial in trials:
        own = by_image[trial.name]
        median = Phases.median(own)
        result = {
            **asdict(median),
            "whole": median.whole,
            "view": median.whole / int(trial.settings.get("views", 1)),
            "times": {other: median_ratio(own, theirs) for other, theirs in by_image.items()},
            "turns": [asdict(turn) for turn in own],
            "device": trainings[trial.name].device.type,
            **shared,
        }
        times[trial.name] = {"result": result, "run": file_name, "commit": commit()}
    return times


def _trainings(trials: Sequence[Trial], seed: int) -> dict[str, Training]:
    """A training for each trial before its first step, all with the number of threads that suits the first."""
    trainings: dict[str, Training] = {}
    for trial in trials:
        assert trial.kind != "linear-regression"
        plan, data = open_and_plan(Request.of(trial.kind, **trial.settings, seed=seed))
        device = choose_device(plan.device)
        if not trainings:
            set_useful_threads(plan, data.train.inputs.shape, device)
        trainings[trial.name] = build_training(plan, data, plan.method, plan.storage(device))
    return trainings


def _images(training: Training) -> float:
    """Mean number of images per step over an epoch."""
    return training.loader.num_samples / training.loader.steps_per_epoch
