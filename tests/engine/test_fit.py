"""The loop: micro-batches, terms of a loss, non-finite values, precision, damaged checkpoints."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.functional import cross_entropy

from networks import Smooth, small_training
from selfadapt.core.errors import TrainingError, UserError
from selfadapt.data.batch import Batch
from selfadapt.data.dataset import Samples
from selfadapt.data.images.augment import augmentation_by_name
from selfadapt.data.loader import SampleLoader
from selfadapt.engine import checkpoint
from selfadapt.engine.accumulator import Accumulator
from selfadapt.engine.fit import FitSettings, Precision, Training, fit
from selfadapt.engine.optim import OptimizerSettings, learning_rate
from selfadapt.models.backbone import Backbone
from selfadapt.models.backbones.mlp import MLP
from selfadapt.models.backbones.resnet import ResNet
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.noisy_labels import NoisyLabels
from selfadapt.objectives.objective import Loss, Objective, Progress, Term
from selfadapt.targets.store import Storage, TargetStore

CPU = torch.device("cpu")


def _training(
    samples: Samples, objective: Objective | None = None, backbone: Backbone | None = None, **settings: object
) -> Training:
    torch.manual_seed(0)
    objective = objective or NoisyLabels(start_epoch=1, momentum=0.8)
    model = objective.build(backbone or Smooth(), 3)
    return Training(
        objective,
        model,
        objective.initial_targets(samples.labels, 3, Storage()),
        SampleLoader(samples, batch_size=20, seed=0, device=CPU),
        replace(FitSettings(epochs=3, optimizer=OptimizerSettings(lr=0.2)), **settings),  # type: ignore[arg-type]
        num_classes=3,
        device=CPU,
    )


def test_micro_batches_give_the_step_of_the_whole(tiny_samples: Samples) -> None:
    """The weights' sum runs over the whole step: a sum for each micro-batch would show here."""
    whole, cut = _training(tiny_samples), _training(tiny_samples, micro_batches=4)
    fit(whole)
    fit(cut)
    for name, tensor in whole.model.state_dict().items():
        torch.testing.assert_close(cut.model.state_dict()[name], tensor, atol=1e-6, rtol=0)


@dataclass(frozen=True, kw_only=True)
class TwoTerms(ERM):
    """A loss whose terms have divisors of their own, as adversarial training has them."""

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        logits = model(batch.input)
        weights = 1.0 + batch.index % 7
        first = Term((weights * cross_entropy(logits, batch.label, reduction="none")).sum(), weights.sum())
        return Loss((first, Term(6 * logits.square().sum(), torch.tensor(float(len(batch))))), logits.detach())


def two_terms_by_hand(samples: Samples, steps: int) -> tuple[list[Tensor], float]:
    """The weights after some steps of plain torch on whole batches, and the last loss."""
    training = _training(samples, TwoTerms())
    model, batches = training.model, list(training.loader.epoch(0))[:steps]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=5e-4)
    loss = torch.zeros(())
    for step, batch in enumerate(batches):
        optimizer.param_groups[0]["lr"] = learning_rate(training.settings.optimizer, step / len(batches), 3)
        logits, weights = model(batch.input), 1.0 + batch.index % 7
        losses = cross_entropy(logits, batch.label, reduction="none")
        loss = (weights * losses).sum() / weights.sum() + 6 * logits.square().sum() / len(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()], loss.item()


@pytest.mark.parametrize("micro_batches", [1, 2, 3])
def test_each_term_has_its_own_divisor_over_the_whole_step(tiny_samples: Samples, micro_batches: int) -> None:
    training = _training(tiny_samples, TwoTerms(), micro_batches=micro_batches)
    for batch in training.loader.epoch(0):
        training.accumulator = Accumulator(training.loader.num_samples, CPU)
        training.take_step(batch)
        training.step += 1
    expected, loss = two_terms_by_hand(tiny_samples, training.loader.steps_per_epoch)
    assert training.accumulator.loss == pytest.approx(loss, rel=1e-5)
    for own, other in zip(training.model.parameters(), expected, strict=True):
        torch.testing.assert_close(own.detach(), other, rtol=1e-5, atol=1e-6)


def test_every_epoch_visits_every_sample_once(tiny_samples: Samples) -> None:
    training = _training(tiny_samples)
    for epoch in range(2):
        batches = list(training.loader.epoch(epoch))
        assert sorted(torch.cat([batch.index for batch in batches]).tolist()) == list(range(48))
        assert {len(batch) for batch in batches} == {16}
    first, second = (torch.cat([b.index for b in training.loader.epoch(e)]) for e in (0, 1))
    assert not torch.equal(first, second)


def test_a_loader_started_in_the_middle_gives_the_rest(tiny_samples: Samples) -> None:
    loader = SampleLoader(tiny_samples, batch_size=10, seed=3, device=CPU, augment=augmentation_by_name("crop-flip", 4))
    whole, rest = list(loader.epoch(4)), list(loader.epoch(4, start=2))
    assert len(rest) == len(whole) - 2
    assert all(
        torch.equal(a.input, b.input) and torch.equal(a.index, b.index) for a, b in zip(whole[2:], rest, strict=True)
    )


class Spoilt(ERM):
    """Ordinary training whose third batch of the second epoch goes wrong."""

    def loss(self, model: nn.Module, batch: Batch, targets, progress):  # type: ignore[no-untyped-def]
        image = batch.input.clone()
        if progress.epoch == 1:
            image[batch.index == 7] = torch.nan
        return super().loss(model, replace(batch, input=image), targets, progress)


def test_a_loss_that_is_not_finite_stops_and_names_the_place(tiny_samples: Samples, tmp_path: Path) -> None:
    training = _training(tiny_samples, Spoilt())
    with pytest.raises(TrainingError, match=r"not finite in epoch 2, step \d, at the samples tiny/7; lower"):
        fit(training, tmp_path)
    assert all(parameter.isfinite().all() for parameter in training.model.parameters())
    saved = checkpoint.load_newest(tmp_path)
    assert saved is not None
    assert saved.epoch == 1


def test_a_nan_meant_for_the_targets_names_the_place_too(tiny_samples: Samples) -> None:
    training = _training(tiny_samples)
    training.model.get_parameter("head.weight").data.fill_(torch.nan)
    training.epoch = 2
    with pytest.raises(TrainingError, match=r"epoch 3, step 1, at the samples tiny/\d+.* and 11 more"):
        fit(training)
    assert training.targets is not None
    assert training.targets.read(torch.arange(48)).isfinite().all(), "no row may keep what is not finite"


def test_mixed_precision_trains(tiny_samples: Samples) -> None:
    training = _training(tiny_samples, precision="bfloat16")
    losses: list[float] = []
    fit(training, after_epoch=lambda t: losses.append(t.accumulator.loss))
    exact: list[float] = []
    fit(_training(tiny_samples), after_epoch=lambda t: exact.append(t.accumulator.loss))
    assert losses == pytest.approx(exact, rel=0.05)
    assert losses != exact


class _Stopped(Exception):
    pass


def test_float16_trains_with_scaled_losses_and_resumes_to_the_same_bits(tiny_samples: Samples, tmp_path: Path) -> None:
    """The scale halves where a gradient overflows, doubles after a while, and goes on from where it was."""
    scales: list[float] = []

    def on_progress(training: Training) -> None:
        scales.append(training.scaler.get_scale())

    def begun() -> Training:
        training = _training(tiny_samples, precision="float16")
        training.scaler = GradScaler("cpu", init_scale=2.0**24, growth_interval=3)  # too much for half precision
        return training

    def stop(training: Training) -> None:
        if (training.epoch, training.step) == (1, 2):
            training.save(tmp_path)
            raise _Stopped

    whole, halted, resumed = begun(), begun(), begun()
    fit(whole, after_step=on_progress)
    assert scales[0] == 2.0**23, "the first step overflows"
    assert any(later > earlier for earlier, later in pairwise(scales)), "later ones do not"
    with pytest.raises(_Stopped):
        fit(halted, after_step=stop)
    saved = checkpoint.load_newest(tmp_path)
    assert saved is not None
    assert saved.state["scaler"]["scale"] == scales[4], "three steps in the first epoch, two in the second"
    resumed.restore(saved)
    fit(resumed)
    assert resumed.scaler.state_dict() == whole.scaler.state_dict()
    for name, tensor in whole.model.state_dict().items():
        assert tensor.isfinite().all()
        assert torch.equal(resumed.model.state_dict()[name], tensor), name
    assert whole.targets is not None
    assert resumed.targets is not None
    assert torch.equal(resumed.targets.read(torch.arange(48)), whole.targets.read(torch.arange(48)))


def test_float16_gives_about_what_float32_does(tiny_samples: Samples) -> None:
    losses: dict[Precision, list[float]] = {"float16": [], "float32": []}
    for precision, own in losses.items():
        fit(_training(tiny_samples, precision=precision), after_epoch=lambda t, own=own: own.append(t.accumulator.loss))  # type: ignore[misc]
    assert losses["float16"] == pytest.approx(losses["float32"], rel=0.01)
    assert losses["float16"] != losses["float32"]


@pytest.mark.slow
def test_a_compiled_model_trains_alike(tiny_samples: Samples) -> None:
    plain, compiled = _training(tiny_samples), _training(tiny_samples, compile="default")
    fit(plain)
    fit(compiled)
    for name, tensor in plain.model.state_dict().items():
        torch.testing.assert_close(compiled.model.state_dict()[name], tensor, atol=1e-5, rtol=0)


@pytest.mark.parametrize("build", [partial(ResNet, (1, 1), width=4, channels=1), partial(MLP, 16, width=32)])
def test_memorises_a_clean_set(tiny_samples: Samples, build: Callable[[], Backbone]) -> None:
    training = _training(tiny_samples, ERM(), build(), epochs=20, optimizer=OptimizerSettings(lr=0.05))
    accuracies: list[float] = []

    def record(training: Training) -> None:
        accuracies.append((training.accumulator.predicted_N.long() == tiny_samples.labels).float().mean().item())

    fit(training, after_epoch=record)
    assert accuracies[-1] > 0.95


def _trained(tiny_samples: Samples, folder: Path) -> Training:
    training = _training(tiny_samples)
    fit(training, folder)
    return training


def test_two_checkpoints_are_kept(tiny_samples: Samples, tmp_path: Path) -> None:
    _trained(tiny_samples, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00002-0000000", "00003-0000000"]


@pytest.mark.parametrize("file", ["model.safetensors", "targets.safetensors", "state.safetensors", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_checkpoint_is_passed_over(tiny_samples: Samples, tmp_path: Path, file: str, damage: str) -> None:
    _trained(tiny_samples, tmp_path)
    path = tmp_path / "00003-0000000" / file
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
    elif damage == "truncate":
        path.write_bytes(content[: len(content) // 2])
    else:
        path.unlink()
    with pytest.warns(UserWarning, match="00003-0000000 is damaged"):
        saved = checkpoint.load_newest(tmp_path)
    assert saved is not None
    assert saved.epoch == 2


def test_only_damaged_checkpoints_is_an_error(tiny_samples: Samples, tmp_path: Path) -> None:
    _trained(tiny_samples, tmp_path)
    for path in tmp_path.iterdir():
        (path / "manifest.json").write_text(json.dumps({"format": 2, "sha256": {"model.safetensors": "0"}}))
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(UserError, match="all checkpoints"):
        checkpoint.load_newest(tmp_path)


def test_no_draft_of_a_killed_save_stays(tiny_samples: Samples, tmp_path: Path) -> None:
    (tmp_path / ".draft-00000-0000003").mkdir()
    fit(small_training(ERM(), tiny_samples, 1), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["00001-0000000"]


class _OnDevice(Tensor):
    """A tensor of a device that knows no double precision, such as Apple's: it has to be brought home first."""

    def cpu(self, *_: Any, **__: Any) -> Tensor:
        return self.as_subclass(Tensor)

    def double(self, *_: Any, **__: Any) -> Tensor:
        raise TypeError("this device has no float64")


def test_what_is_measured_needs_no_double_precision_on_the_device() -> None:
    accumulator = Accumulator(1, torch.device("cpu"))
    accumulator.measure("what", torch.tensor([1.0, 2.0]).as_subclass(_OnDevice))
    assert accumulator.metrics["what"] == 1.5


def test_a_draft_that_a_crash_left_is_ignored(tiny_samples: Samples, tmp_path: Path) -> None:
    _trained(tiny_samples, tmp_path)
    shutil.copytree(tmp_path / "00003-0000000", tmp_path / ".draft-00004-0000000")
    saved = checkpoint.load_newest(tmp_path)
    assert saved is not None
    assert saved.epoch == 3
