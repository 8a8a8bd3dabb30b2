"""A training step never makes the host wait for the device, for any method and target store.

The device is simulated (tests/simulated_device.py), and shown to notice what waits.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from networks import Smooth
from selfadapt import Storage
from selfadapt.core.errors import TrainingError
from selfadapt.data.batch import Batch
from selfadapt.data.dataset import Samples
from selfadapt.data.images.augment import augmentation_by_name
from selfadapt.data.images.storage import TensorImages
from selfadapt.data.loader import SampleLoader
from selfadapt.engine.fit import FitSettings, Training, fit
from selfadapt.engine.optim import OptimizerSettings
from selfadapt.objectives.baselines.correction.joint_optimization import Relabelling
from selfadapt.objectives.baselines.selection.area_under_margin import Margins, OnLargeMargins
from selfadapt.objectives.baselines.selection.deep_abstaining import Abstaining
from selfadapt.objectives.baselines.selection.label_filtering import LabelFiltering
from selfadapt.objectives.baselines.selection.selected_samples import OnSelected
from selfadapt.objectives.method import Method, Task
from selfadapt.objectives.methods import METHODS
from selfadapt.objectives.noisy_labels import NoisyLabels
from selfadapt.targets.store import TargetStore
from simulated_device import DEVICE, OnDevice, SimulatedDevice, simulated_device

STORES = ("float32", "float16", "int8", "topk:2", "file")
EVERY_STORE = (*STORES, *(f"pinned:{name}" for name in STORES if name != "file"), "sharded:float32")
_STEPS = 3


PARTS: dict[str, Any] = {
    "aum, first": Margins(is_threshold_N=torch.arange(48) % 4 == 0),
    "aum, third": OnLargeMargins(chosen_N=torch.arange(48) % 5 > 0, above_N=torch.arange(48) - 9.0),
    "dac, first": Abstaining(warm_up=1, final_weight=1.0),
    "dac, second": OnSelected(chosen_N=torch.arange(48) % 5 > 0),
    "joint-optimization, first": Relabelling(start_epoch=1, prior_weight=1.0, entropy_weight=1.0),
    "self, second": LabelFiltering(voted_N=torch.arange(48) % 3),
}


def _samples() -> Samples:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(48) % 3
    images = labels.view(-1, 1, 1, 1) * 80 + torch.randint(0, 60, (48, 1, 4, 4), generator=generator)
    pixels = TensorImages(images.to(torch.uint8))
    return Samples(inputs=pixels, labels=labels, truth=None, ids=[f"tiny/{i}" for i in range(48)])


def _training(
    method: Any,
    store: str,
    folder: Path,
    device: torch.device,
    *,
    augment: str = "none",
    views: int = 1,
    shards: int | None = None,
    **settings: Any,
) -> Training:
    torch.manual_seed(0)
    samples = _samples()
    storage = Storage.parse(store, device=device, file=folder / "targets.bin")
    return Training(
        method,
        method.build(Smooth(), 3),
        method.initial_targets(samples.labels, 3, storage),
        SampleLoader(
            samples,
            batch_size=12,
            seed=0,
            device=device,
            augment=augmentation_by_name(augment, 4),
            views=views,
            shards=shards,
        ),
        FitSettings(**{"epochs": 4, "optimizer": OptimizerSettings(lr=0.1), **settings}),
        num_classes=3,
        device=device,
    )


def _steps(training: Training) -> None:
    """Take the steps of an epoch as the loop does."""
    for batch in training.loader.epoch(training.epoch, start=training.step):
        training.take_step(batch)
        training.step += 1


WAITS: dict[str, Callable[[Tensor], object]] = {
    ".item()": lambda x: x[0, 0].item(),
    ".tolist()": lambda x: x.tolist(),
    ".cpu()": lambda x: x.cpu(),
    ".numpy()": lambda x: x.cpu().numpy(),
    "nonzero": lambda x: x.nonzero(),
    "a boolean mask": lambda x: x[x > 0],
    "writing by a boolean mask": lambda x: x.index_put_((x > 0,), torch.zeros(6, device=DEVICE)),
    "bool()": lambda x: bool((x > 0).any()),
    "float()": lambda x: float(x.sum()),
    "a copy from ordinary memory": lambda x: torch.ones(3).to(x.device, non_blocking=True),
    "a blocking copy": lambda x: torch.ones(3).pin_memory().to(x.device),
    "an index on the host": lambda x: x[torch.tensor([0, 1])],
    "torch.tensor": lambda x: torch.tensor([1, 2], device=x.device),
}


@pytest.mark.parametrize("what", WAITS)
def test_the_simulated_device_notices(what: str) -> None:
    with simulated_device() as device:
        values = OnDevice(torch.arange(6.0).view(2, 3) + 1)
        device.syncs.clear()
        WAITS[what](values)
    assert len(device.syncs) == 1


def test_the_simulated_device_shows_what_is_read_too_early() -> None:
    with simulated_device() as device:
        copy, event = OnDevice(torch.tensor([5.0])).to("cpu", non_blocking=True), torch.Event(DEVICE)
        event.record()
        assert not event.query()
        assert copy.item() != 5
        event.synchronize()
        assert copy.item() == 5
    assert len(device.syncs) == 1


def _run_steps(training: Training, device: SimulatedDevice, epochs: int) -> None:
    """Take the steps of some epochs; the host may wait between epochs, and once in a step for an earlier one."""
    for _ in range(epochs):
        training.start_epoch()
        device.syncs.clear()
        device.late.clear()
        _steps(training)
        assert device.syncs == []
        assert len(device.late) <= training.step
        training.settle()
        training.end_epoch({**training.accumulator.metrics, "validation_accuracy_given": 0.0})


def _suited(kind: Any, name: str) -> Method | None:
    method: Any = METHODS[kind][name]()
    if method.solves:
        return None
    task = Task(num_classes=3, num_samples=48, epochs=4, views=method.views)
    changes: dict[str, Any] = {"hidden": 8, "dimensions": 4} if kind == "pretraining" else {}
    suited: Method = replace(method, **changes).suited(task)
    return suited


IN_STEPS = [name for name in METHODS["labels"] if _suited("labels", name) is not None]


@pytest.mark.parametrize("name", IN_STEPS)
def test_no_method_waits_in_a_step(name: str, tmp_path: Path) -> None:
    """In all epochs of a training, so that every stage of a method is reached."""
    with simulated_device() as device:
        training = _training(_suited("labels", name), "float32", tmp_path, DEVICE, augment="crop-flip")
        _run_steps(training, device, 4)


@pytest.mark.parametrize(("kind", "names"), [("labels", IN_STEPS), ("pretraining", [*METHODS["pretraining"]])])
def test_the_page_lists_these_methods(kind: str, names: list[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
    command = {"labels": "train", "pretraining": "pretrain"}[kind]
    assert f"| `{command}` | {', '.join(f'`{name}`' for name in names)} | 0 |" in page


@pytest.mark.parametrize(
    "given",
    [
        *({"optimizer": OptimizerSettings(name=name, lr=0.1)} for name in ("nesterov", "adam", "adamw", "lars")),
        {"micro_batches": 3},
        {"shards": 4},
        *({"augment": name} for name in ("shift-flip", "rotate-crop")),
    ],
    ids=str,
)
def test_no_setting_makes_a_step_wait(given: dict[str, Any], tmp_path: Path) -> None:
    for name in ("sat", "trades"):  # losses of one term and of two
        with simulated_device() as device:
            training = _training(_suited("labels", name), "float32", tmp_path, DEVICE, **given)
            _run_steps(training, device, 2)


@pytest.mark.parametrize("name", PARTS)
def test_no_training_of_a_method_with_several_waits_in_a_step(name: str, tmp_path: Path) -> None:
    with simulated_device() as device:
        training = _training(PARTS[name], "float32", tmp_path, DEVICE)
        _steps(training)  # copies what it needs of earlier trainings
        training.end_epoch({})
        _run_steps(training, device, 2)


@pytest.mark.parametrize("name", METHODS["pretraining"])
def test_no_self_supervised_method_waits_in_a_step(name: str, tmp_path: Path) -> None:
    method = _suited("pretraining", name)
    assert method is not None
    with simulated_device() as device:
        training = _training(method, "float32", tmp_path, DEVICE, augment="self-supervised-blur", views=method.views)
        _run_steps(training, device, 2)


@pytest.mark.parametrize("store", EVERY_STORE)
def test_no_target_store_waits_in_a_step(store: str, tmp_path: Path) -> None:
    """The targets are those of the CPU, so nothing was read before it had arrived."""
    method = NoisyLabels(start_epoch=1, momentum=0.6)
    on_host = _training(method, store, tmp_path, torch.device("cpu"))
    for _ in range(3):
        _steps(on_host)
        on_host.end_epoch({})
    with simulated_device() as device:
        training = _training(method, store, tmp_path, DEVICE)
        _run_steps(training, device, 3)
        assert training.targets is not None
        rows = training.targets.read(torch.arange(48)).cpu()
    assert on_host.targets is not None
    assert torch.equal(rows, on_host.targets.read(torch.arange(48)))


class Spoilt(NoisyLabels):
    """Gets images with NaN in the second epoch."""

    def loss(self, model: Any, batch: Batch, targets: TargetStore | None, progress: Any) -> Any:
        if progress.epoch == 1:
            spoilt = (batch.index == 7).view(-1, 1, 1, 1)
            batch = replace(batch, input=torch.where(spoilt, torch.nan, batch.input))
        return super().loss(model, batch, targets, progress)


@pytest.mark.parametrize("store", ["float32", "float16", "topk:2", "pinned:float32"])
def test_a_loss_that_is_not_finite_is_named_though_it_is_read_later(store: str, tmp_path: Path) -> None:
    with simulated_device():
        training = _training(Spoilt(start_epoch=0, momentum=0.6), store, tmp_path, DEVICE)
        place = next(step for step, batch in enumerate(training.loader.epoch(1), 1) if 7 in batch.index.tolist())
        with pytest.raises(TrainingError, match=rf"epoch 2, step {place}, at the samples tiny/7; lower"):
            fit(training)
        assert training.targets is not None
        assert training.targets.read(torch.arange(48)).cpu().isfinite().all()
