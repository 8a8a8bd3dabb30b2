"""Phases of a step: they add up, they are told apart, and the clocks change no bit of training."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from networks import small_training
from selfadapt.data.loader import Batch
from selfadapt.data.samples import Samples
from selfadapt.engine.fit import Training, fit
from selfadapt.engine.phases import Phases, median_ratio, time_side_by_side, timed_steps
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.noisy_labels import NoisyLabels
from selfadapt.objectives.objective import Loss, Progress
from selfadapt.targets.store import TargetStore

SAT = NoisyLabels(start_epoch=1, momentum=0.8)


def _state(training: Training) -> dict[str, Tensor]:
    assert training.targets is not None
    rows_NK = training.targets.read(torch.arange(training.loader.num_samples))
    momenta = [state["momentum_buffer"] for state in training.optimizer.state.values()]
    return {**training.model.state_dict(), "targets": rows_NK, **{f"momentum {i}": m for i, m in enumerate(momenta)}}


def test_clocks_change_no_bit(tiny_samples: Samples) -> None:
    """Three epochs by the loop, and the same steps timed, in pieces that end within epochs."""
    plain, timed = (small_training(SAT, tiny_samples, 3) for _ in range(2))
    fit(plain)
    steps = 3 * timed.loader.steps_per_epoch
    for count in (2, 3, steps - 5):
        timed_steps(timed, count)
    assert timed.objective is SAT
    assert (timed.epoch, timed.step) == (2, timed.loader.steps_per_epoch)
    for name, tensor in _state(plain).items():
        assert torch.equal(_state(timed)[name], tensor), name


class SlowLoader:
    """A loader that takes a known time for each batch."""

    def __init__(self, training: Training, seconds: float) -> None:
        self.own, self.seconds = training.loader, seconds
        self.num_samples, self.steps_per_epoch = self.own.num_samples, self.own.steps_per_epoch
        self.ids = self.own.ids

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        for batch in self.own.epoch(epoch, start):
            time.sleep(self.seconds)
            yield batch


@dataclass(frozen=True, kw_only=True)
class Slow(ERM):
    """Ordinary training whose forward pass and whose step take known times."""

    forward: float
    backward: float

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        time.sleep(self.forward)
        return super().loss(model, batch, targets, progress)

    def after_step(self, model: nn.Module, progress: Progress) -> None:
        time.sleep(self.backward)


def _slow(samples: Samples, data: float, forward: float, backward: float) -> Training:
    training = small_training(Slow(forward=forward, backward=backward), samples, 3)
    training.loader = SlowLoader(training, data)
    return training


def test_phases_are_told_apart_and_add_up_to_the_step(tiny_samples: Samples) -> None:
    training = _slow(tiny_samples, 0.01, 0.03, 0.02)
    timed_steps(training, 1)
    began = time.perf_counter()
    steps = timed_steps(training, 5)
    elapsed = time.perf_counter() - began
    assert 0.8 * elapsed < sum(step.whole for step in steps) <= elapsed
    quickest = Phases(*(min(getattr(step, name) for step in steps) for name in ("data", "forward", "backward")))
    for name, seconds in (("data", 0.01), ("forward", 0.03), ("backward", 0.02)):
        assert seconds <= getattr(quickest, name) < seconds + 0.009, name  # what is slept for, and a small network
    assert all(step.whole == step.data + step.forward + step.backward for step in steps)


def test_trainings_take_turns_and_ratios_are_of_the_same_turn(tiny_samples: Samples) -> None:
    order: list[tuple[str, float]] = []
    trainings = {"quick": _slow(tiny_samples, 0, 0.01, 0), "late": _slow(tiny_samples, 0, 0.02, 0.02)}
    found = time_side_by_side(
        trainings, turns=4, steps=2, warm_up=1, on_progress=lambda done, total: order.append((f"of {total}", done))
    )
    assert order == [("of 8", done) for done in range(8)]
    assert {name: len(turns) for name, turns in found.items()} == {"quick": 4, "late": 4}
    assert all(training.epoch * 3 + training.step == 12 for training in trainings.values())
    assert 2 < median_ratio(found["late"], found["quick"]) < 4.5


def test_means_medians_and_ratios() -> None:
    turns = [Phases(1.0, 2.0, 3.0), Phases(3.0, 2.0, 7.0), Phases(100.0, 5.0, 1.0)]
    assert Phases.mean(turns[:2]) == Phases(2.0, 2.0, 5.0)
    assert Phases.median(turns) == Phases(3.0, 2.0, 3.0)
    assert turns[0].scaled(0.5) == Phases(0.5, 1.0, 1.5)
    assert median_ratio(turns, [Phases(1.0, 1.0, 1.0)] * 3) == pytest.approx(4.0)
    assert median_ratio(turns, [Phases(1.0, 4.0, 1.0)] * 3, "forward") == pytest.approx(0.5)
