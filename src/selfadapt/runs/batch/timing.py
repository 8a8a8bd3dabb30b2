"""Trials of a recipe, timed side by side instead of trained to their end."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from selfadapt.core.atomic_files import atomic_write
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.engine.fit import Training
from selfadapt.engine.phases import Phases, median_ratio, time_side_by_side
from selfadapt.recipes.recipe import Experiment, Trial
from selfadapt.runs.config.request import Request
from selfadapt.runs.lifecycle.environment import choose_device, commit
from selfadapt.runs.lifecycle.lifecycle import open_and_plan
from selfadapt.runs.lifecycle.threads import take_useful_threads
from selfadapt.runs.train.build_training import build_training
from selfadapt.targets.store import Storage

Times = dict[str, dict[str, Any]]  # of each trial by name


def time_trials(experiment: Experiment, seed: int, file: Path, on_progress: ProgressCallback = no_progress) -> Times:
    """What a step of each trial takes, by phase; kept in `file`, so that it is measured once.

    The result of a trial has milliseconds an image, and how many times as long as each trial it takes: medians over
    turns.
    """
    assert experiment.timing is not None
    asked = {
        "timing": asdict(experiment.timing),
        "seed": seed,
        "trials": {trial.name: {"kind": trial.kind, **trial.settings} for trial in experiment.trials},
    }
    if file.exists():
        kept = json.loads(file.read_text(encoding="utf-8"))
        if kept["asked"] == asked:
            return dict(kept["times"])
    began = time.monotonic()
    trainings = _trainings(experiment.trials, seed)
    turns = time_side_by_side(trainings, **asdict(experiment.timing), on_progress=on_progress)
    by_image = {name: [turn.scaled(1000 / _images(trainings[name])) for turn in own] for name, own in turns.items()}
    shared = {"threads": torch.get_num_threads(), "seconds": round(time.monotonic() - began, 3)}
    times = {}
    for trial in experiment.trials:
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
        times[trial.name] = {"result": result, "run": file.name, "commit": commit()}
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as draft:
        json.dump({"asked": asked, "times": times}, draft)
    return times


def _trainings(trials: Sequence[Trial], seed: int) -> dict[str, Training]:
    """A training for each trial before its first step, all with as many threads as the first gains from."""
    trainings: dict[str, Training] = {}
    for trial in trials:
        assert trial.kind != "linear-regression"
        plan, data = open_and_plan(Request.of(trial.kind, **trial.settings, seed=seed))
        if not trainings:
            take_useful_threads(plan, data.train.inputs.shape, choose_device(plan.device))
        trainings[trial.name] = build_training(plan, data, plan.method, Storage())
    return trainings


def _images(training: Training) -> float:
    """The images of a step, the mean over an epoch."""
    return training.loader.num_samples / training.loader.steps_per_epoch
