"""Timing of the phases of a step, without changes to the training loop.

    data      waiting for the batch: reading, unless workers read ahead, and augmentation
    forward   the method's loss: forward passes of all encoders, targets, loss
    backward  the rest of the step: gradients, the optimiser, the momentum encoder

Devices compute asynchronously, so they are synchronised before the clock is read.
"""

import statistics
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

import torch
from torch import nn

from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.data.batch import Batch
from selfadapt.engine.fit import Training
from selfadapt.objectives.objective import Loss, Objective, Progress
from selfadapt.targets.store import TargetStore


@dataclass(frozen=True)
class Phases:
    """Seconds of a step, or a statistic of several steps."""

    data: float
    forward: float
    backward: float

    @property
    def whole(self) -> float:
        return self.data + self.forward + self.backward

    def scaled(self, factor: float) -> "Phases":
        return Phases(factor * self.data, factor * self.forward, factor * self.backward)

    @classmethod
    def mean(cls, steps: "Sequence[Phases]") -> "Phases":
        return cls(*(statistics.fmean(getattr(step, phase.name) for step in steps) for phase in fields(cls)))

    @classmethod
    def median(cls, turns: "Sequence[Phases]") -> "Phases":
        """Return the median of each phase separately."""
        return cls(*(statistics.median(getattr(turn, phase.name) for turn in turns) for phase in fields(cls)))


class _TimedObjective:
    """A proxy of a method that times its loss."""

    def __init__(self, objective: Objective, device: torch.device) -> None:
        self.objective, self.device = objective, device
        self.seconds = 0.0

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        start = _now(self.device)
        loss = self.objective.loss(model, batch, targets, progress)
        self.seconds += _now(self.device) - start  # for each micro-batch
        return loss

    def __getattr__(self, name: str) -> Any:
        return getattr(self.objective, name)


def _now(device: torch.device) -> float:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()


def timed_steps(training: Training, count: int) -> list[Phases]:
    """Take and time `count` steps from the current position, bit-identical to those of the loop."""
    device, objective = training.device, training.objective
    timed, batches, steps = _TimedObjective(objective, device), _batches(training), []
    training.model.train()
    training.objective = cast(Objective, timed)
    try:
        for _ in range(count):
            start, timed.seconds = _now(device), 0.0
            batch = next(batches)
            loaded = _now(device)
            training.take_step(batch)
            training.step += 1
            rest = _now(device) - loaded - timed.seconds
            steps.append(Phases(loaded - start, timed.seconds, rest))
    finally:
        training.objective = objective
        batches.close()  # stops workers, which would read ahead while another training is timed
    return steps


def _batches(training: Training) -> Generator[Batch]:
    """Yield the batches from the next step on, across epochs."""
    while True:
        yield from training.loader.epoch(training.epoch, start=training.step)
        training.end_epoch(training.accumulator.metrics)


def time_side_by_side(
    trainings: Mapping[str, Training],
    *,
    turns: int,
    steps: int,
    warm_up: int,
    on_progress: ProgressCallback = no_progress,
) -> dict[str, list[Phases]]:
    """Return the mean step of each training in each turn.

    Trainings take turns in rotating order, so that load on the machine affects all. In a turn a training takes
    `warm_up` steps that do not count, until workers and caches are in a steady state, and then `steps` that do. The
    mean is used because delayed workers deliver several batches at once.
    """
    names = list(trainings)
    timings: dict[str, list[Phases]] = {name: [] for name in names}
    for turn in range(turns):
        first = turn % len(names)
        for position, name in enumerate(names[first:] + names[:first]):
            on_progress(turn * len(names) + position, turns * len(names))
            timings[name].append(Phases.mean(timed_steps(trainings[name], warm_up + steps)[warm_up:]))
    return timings


def median_ratio(above: Sequence[Phases], below: Sequence[Phases], phase: str = "whole") -> float:
    """Return the median over turns of the ratio of two trainings' times in the same turn."""
    pairs = zip(above, below, strict=True)
    return float(statistics.median(getattr(one, phase) / getattr(other, phase) for one, other in pairs))
