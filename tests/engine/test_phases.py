"""Phases of a step: they add up, they are distinguished, and timing does not change the training."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from networks import small_training
from selfadapt.data.batch import Batch
from selfadapt.data.dataset import Samples
from selfadapt.engine import phases
from selfadapt.engine.fit import Training, fit
from selfadapt.engine.phases import Phases, median_ratio, time_side_by_side, timed_steps
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.noisy_labels import NoisyLabels
from selfadapt.objectives.objective import Loss, Progress
from selfadapt.targets.store import TargetStore

SAT = NoisyLabels(start_epoch=1, momentum=0.8)


class Clock:
    """A clock that only `sleep` moves, so that no other program on the machine can."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(phases, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


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

    def __init__(self, training: Training, seconds: float, clock: Clock) -> None:
        self.own, self.seconds, self.clock = training.loader, seconds, clock
        self.num_samples, self.steps_per_epoch = self.own.num_samples, self.own.steps_per_epoch
        self.ids = self.own.ids

    def epoch(self, epoch: int, start: int = 0, stride: int = 1) -> Iterator[Batch]:
        for batch in self.own.epoch(epoch, start, stride):
            self.clock.sleep(self.seconds)
            yield batch

    def plain(self) -> Iterator[Batch]:
        return self.own.plain()


@dataclass(frozen=True, kw_only=True)
class Slow(ERM):
    """Ordinary training whose forward pass and whose step take known times."""

    forward: float
    backward: float
    clock: Clock

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        self.clock.sleep(self.forward)
        return super().loss(model, batch, targets, progress)

    def after_step(self, model: nn.Module, progress: Progress) -> None:
        self.clock.sleep(self.backward)


def _slow(samples: Samples, clock: Clock, data: float, forward: float, backward: float) -> Training:
    training = small_training(Slow(forward=forward, backward=backward, clock=clock), samples, 3)
    training.loader = SlowLoader(training, data, clock)
    return training


def test_phases_are_told_apart_and_add_up_to_the_step(tiny_samples: Samples, clock: Clock) -> None:
    steps = timed_steps(_slow(tiny_samples, clock, 1.0, 3.0, 2.0), 5)
    assert steps == [Phases(1.0, 3.0, 2.0)] * 5
    assert clock.now == sum(step.whole for step in steps) == 30.0


def test_trainings_take_turns_and_ratios_are_of_the_same_turn(tiny_samples: Samples, clock: Clock) -> None:
    order: list[tuple[str, float]] = []
    trainings = {"quick": _slow(tiny_samples, clock, 0, 1.0, 0), "late": _slow(tiny_samples, clock, 0, 2.0, 2.0)}
    found = time_side_by_side(
        trainings, turns=4, steps=2, warm_up=1, on_progress=lambda done, total: order.append((f"of {total}", done))
    )
    assert order == [("of 8", done) for done in range(8)]
    assert {name: len(turns) for name, turns in found.items()} == {"quick": 4, "late": 4}
    assert all(training.epoch * 3 + training.step == 12 for training in trainings.values())
    assert median_ratio(found["late"], found["quick"]) == 4.0


def test_means_medians_and_ratios() -> None:
    turns = [Phases(1.0, 2.0, 3.0), Phases(3.0, 2.0, 7.0), Phases(100.0, 5.0, 1.0)]
    assert Phases.mean(turns[:2]) == Phases(2.0, 2.0, 5.0)
    assert Phases.median(turns) == Phases(3.0, 2.0, 3.0)
    assert turns[0].scaled(0.5) == Phases(0.5, 1.0, 1.5)
    assert median_ratio(turns, [Phases(1.0, 1.0, 1.0)] * 3) == pytest.approx(4.0)
    assert median_ratio(turns, [Phases(1.0, 4.0, 1.0)] * 3, "forward") == pytest.approx(0.5)
