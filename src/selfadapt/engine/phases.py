"""Where the time of a step goes: data, forward, backward. All clocks stand outside the loop, which knows of none.

    data      waiting for the batch: reading it, as far as workers did not read ahead, and augmentation
    forward   the method's loss: forward passes of all encoders, targets, loss
    backward  the rest of the step: gradients, the optimiser, the momentum encoder

A device computes behind the program's back, so the clock is read when it has done all it was told.
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
    """The seconds of a step, or of what is made of several."""

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
        return cls(*(statistics.fmean(getattr(step, own.name) for step in steps) for own in fields(cls)))

    @classmethod
    def median(cls, turns: "Sequence[Phases]") -> "Phases":
        """The median of each phase by itself."""
        return cls(*(statistics.median(getattr(turn, own.name) for turn in turns) for own in fields(cls)))


class _TimedObjective:
    """A training's method with a clock around its loss; all else is the method's own."""

    def __init__(self, objective: Objective, device: torch.device) -> None:
        self.objective, self.device = objective, device
        self.seconds = 0.0

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        began = _now(self.device)
        loss = self.objective.loss(model, batch, targets, progress)
        self.seconds += _now(self.device) - began  # once for each micro-batch
        return loss

    def __getattr__(self, name: str) -> Any:
        return getattr(self.objective, name)


def _now(device: torch.device) -> float:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()


def timed_steps(training: Training, count: int) -> list[Phases]:
    """Take so many steps from where the training stands, to the same bits as the loop takes them, and time each."""
    device, objective = training.device, training.objective
    timed, batches, steps = _TimedObjective(objective, device), _batches(training), []
    training.model.train()
    training.objective = cast(Objective, timed)
    try:
        for _ in range(count):
            began, timed.seconds = _now(device), 0.0
            batch = next(batches)
            loaded = _now(device)
            training.take_step(batch)
            training.step += 1
            rest = _now(device) - loaded - timed.seconds
            steps.append(Phases(loaded - began, timed.seconds, rest))
    finally:
        training.objective = objective
        batches.close()  # and with it workers, who would read ahead while somebody else is timed
    return steps


def _batches(training: Training) -> Generator[Batch]:
    """The batches from the next step on; after the last one of an epoch, those of the next."""
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
    """The mean step of each training in each turn.

    They take turns, so that a slow moment of the machine strikes all, and who begins changes from turn to turn. In a
    turn a training takes `warm_up` steps that do not count, until workers and caches are as they stay, and then
    `steps` that do. Their mean is taken because workers who are behind deliver several batches at once.
    """
    names = list(trainings)
    found: dict[str, list[Phases]] = {name: [] for name in names}
    for turn in range(turns):
        first = turn % len(names)
        for place, name in enumerate(names[first:] + names[:first]):
            on_progress(turn * len(names) + place, turns * len(names))
            found[name].append(Phases.mean(timed_steps(trainings[name], warm_up + steps)[warm_up:]))
    return found


def median_ratio(above: Sequence[Phases], below: Sequence[Phases], phase: str = "whole") -> float:
    """The median, over turns, of one training's time over another's in the same turn."""
    seconds = ((getattr(one, phase), getattr(other, phase)) for one, other in zip(above, below, strict=True))
    return float(statistics.median(mine / theirs for mine, theirs in seconds))
