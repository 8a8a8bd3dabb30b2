"""Where features go: detection (Faster R-CNN) and segmentation (FCN) with the backbone of a run, on data in VOC's form.

The C4 detector and the FCN follow the protocol of Table 10 (He et al., 2020) unless told otherwise; the detector with a
feature pyramid is a quicker one. Sizes and rates are options, because VOC at full size asks for GPUs. All is done in
one process, so batch normalisation sees the whole batch, which is what synchronised batch normalisation is for.
"""

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from selfadapt.core.errors import Interrupted, TrainingError, UserError
from selfadapt.core.progress import ProgressCallback
from selfadapt.core.rng import draw, seeded
from selfadapt.data.inputs import InputSpec
from selfadapt.data.row_cache import content_digest
from selfadapt.data.sources.voc import VOC, Sample
from selfadapt.engine import checkpoint
from selfadapt.engine.interrupt import stop_on_signal
from selfadapt.engine.optim import OptimizerSettings, learning_rate
from selfadapt.models.backbones.resnet import ResNet
from selfadapt.models.batch_norm.batch_statistics import averaged_statistics
from selfadapt.models.dense.faster_rcnn_c4 import c4_detector
from selfadapt.models.dense.fcn import FCN
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.run_settings import RunSettings
from selfadapt.runs.export.network_files import torchvision_weights
from selfadapt.runs.lifecycle.environment import choose_device
from selfadapt.runs.lifecycle.network import bare_backbone
from selfadapt.runs.transfer.detection_task import Detection, pyramid_detector
from selfadapt.runs.transfer.segmentation_task import Segmentation

Task = Literal["detection", "segmentation"]
Detector = Literal["pyramid", "c4"]
_SAVED_EVERY = 500  # steps
_STATISTICS = 200  # batches over which the C4 detector takes the statistics of batch normalisation


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What is usual for a network, where the user gives nothing else."""

    steps: int | None = None
    epochs: int | None = None
    batch_size: int
    lr: float
    image_size: int
    milestones: tuple[float, ...] = ()  # shares of all steps after which the rate is a tenth; none: it falls in a line


_USUAL = {
    "pyramid": Schedule(epochs=26, batch_size=4, lr=0.01, image_size=480),
    "c4": Schedule(steps=24_000, batch_size=16, lr=0.02, image_size=800, milestones=(18 / 24, 22 / 24)),
    "fcn": Schedule(steps=30_000, batch_size=16, lr=0.003, image_size=513, milestones=(0.7, 0.9)),
}


@dataclass(frozen=True, kw_only=True)
class TransferSettings:
    task: Task
    detector: Detector = "pyramid"
    steps: int | None = None
    epochs: int | None = None  # instead of steps
    batch_size: int | None = None
    lr: float | None = None
    image_size: int | None = None  # detection: of the shorter side at test; segmentation: of the crops
    regions: int = 512  # of an image, from which C4's head learns in a step
    weight_decay: float = 1e-4
    scratch: bool = False  # begin with random weights instead, to compare
    seed: int = 0

    @property
    def usual(self) -> Schedule:
        return _USUAL["fcn" if self.task == "segmentation" else self.detector]

    def resolved(self) -> "TransferSettings":
        """With what is usual for what was left open."""
        for name, known in (("task", ("detection", "segmentation")), ("detector", ("pyramid", "c4"))):
            if getattr(self, name) not in known:
                raise UserError(f"--{name} {getattr(self, name)!r} is not known; choose {' or '.join(known)}")
        if self.task == "segmentation" and self.detector != "pyramid":
            raise UserError(f"--detector {self.detector} is for detection; leave it out")
        if self.steps is not None and self.epochs is not None:
            raise UserError("give --steps or --epochs, not both")
        usual = self.usual
        timed = self.steps is not None or self.epochs is not None
        chosen = replace(
            self,
            steps=self.steps if timed else usual.steps,
            epochs=self.epochs if timed else usual.epochs,
            **{
                name: getattr(usual, name) if getattr(self, name) is None else getattr(self, name)
                for name in ("batch_size", "lr", "image_size")
            },
        )
        for name in ("steps", "epochs", "batch_size", "image_size", "regions"):
            if (value := getattr(chosen, name)) is not None and value < 1:
                raise UserError(f"--{name.replace('_', '-')} {value} must be at least 1")
        if not 0 < (chosen.lr or 0) < float("inf"):
            raise UserError(f"--lr {chosen.lr} must be a number above 0")
        return chosen

    def total(self, images: int) -> int:
        """The number of steps."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        assert self.batch_size is not None
        return -(-self.epochs * images // self.batch_size)

    def rate(self, done: int, total: int) -> float:
        """The learning rate of the step after `done` ones."""
        assert self.lr is not None
        if not self.usual.milestones:
            return self.lr * min((done + 1) / max(1, total // 10), 1 - done / total)
        shape = OptimizerSettings(
            lr=self.lr,
            schedule="step",
            milestones=tuple(round(share * total) for share in self.usual.milestones),
            warmup_epochs=min(100, total // 10),
            warmup_from=self.lr / 1000,
        )
        return learning_rate(shape, done, total)


class Downstream(Protocol):
    """What is learned from the features."""

    @property
    def data(self) -> VOC: ...

    def loss(self, model: Any, samples: Sequence[Sample], device: torch.device) -> Tensor: ...

    def measure(self, model: Any, device: torch.device, on_progress: ProgressCallback) -> dict[str, Any]: ...


def transfer(
    folder: RunFolder, roots: Sequence[Path], settings: TransferSettings, device: str, on_progress: ProgressCallback
) -> dict[str, Any]:
    """Train a detector or a segmenter on the features of a run and measure it; written into the run folder.

    One that was stopped goes on from its last checkpoint.
    """
    settings, own = settings.resolved(), choose_device(device)
    torch.manual_seed(settings.seed)
    downstream, model = _built(folder, roots, settings)
    model.to(own)  # over several processes, batch normalisation would become a synchronised one here
    kind = settings.detector if settings.task == "detection" and settings.detector != "pyramid" else ""
    words = ("+".join(root.name for root in roots), settings.task, kind, "scratch" if settings.scratch else "")
    key = " ".join(word for word in words if word)
    asked = content_digest(json.dumps([asdict(settings), *(str(root.resolve()) for root in roots)]).encode()).hex()
    checkpoints = folder.path / "transfer" / f"{re.sub(r'[^A-Za-z0-9+]+', '-', key)}-{asked}"
    _train(model, downstream, settings, own, checkpoints, on_progress)
    model.eval()
    with torch.inference_mode():
        scores = downstream.measure(model, own, on_progress)
    count = len(downstream.data.test)
    result = {"task": settings.task, "detector": kind or None, "scratch": settings.scratch, "images": count, **scores}
    folder.write_transfer({**(folder.read_if_there(folder.transfer_file) or {}), key: result})
    shutil.rmtree(checkpoints, ignore_errors=True)
    return result


def _built(folder: RunFolder, roots: Sequence[Path], settings: TransferSettings) -> tuple[Downstream, nn.Module]:
    """What is learned, and the network that learns it."""
    content = folder.read_run()
    saved = checkpoint.load_newest(folder.checkpoints)
    if saved is None:
        raise UserError(f"{folder.path} holds no trained network")
    assert settings.image_size is not None
    size = settings.image_size
    if settings.task == "detection" and settings.detector == "pyramid":
        body = {k: v for k, v in torchvision_weights(content, saved.model).items() if not k.startswith("fc.")}
        data, name = VOC.detection(roots), content["settings"]["model"]["name"]
        scale = _scale(saved.model)
        weights = None if settings.scratch else body
        detector = pyramid_detector(name, weights, len(data.classes), **scale, image_size=size)
        return Detection(data, learns_difficult=False), detector
    network = _network(folder, content, None if settings.scratch else saved.model)
    scale = _scale(saved.model)
    if settings.task == "segmentation":
        data = VOC.segmentation(roots)
        return Segmentation(data, size), FCN(network, len(data.classes) + 1, **scale)
    data = VOC.detection(roots)
    detector = c4_detector(network, len(data.classes), **scale, image_size=size, regions=settings.regions)
    return Detection(data, learns_difficult=True), detector


def _scale(model: dict[str, Tensor]) -> dict[str, list[float]]:
    """The mean and deviation of each channel that a run's network was trained with."""
    return {part: model[f"backbone.{part}_C11"].flatten().tolist() for part in ("mean", "std")}


def _network(folder: RunFolder, content: dict[str, Any], weights: dict[str, Tensor] | None) -> ResNet:
    """The bare network of a run with these weights, or random ones."""
    settings = RunSettings.from_json(content["settings"], content["settings"]["kind"])
    shape = tuple(content["data"]["shape"])
    network = bare_backbone(settings, shape) if InputSpec.of(shape).kind == "images" else None
    if not isinstance(network, ResNet):
        raise UserError(
            f"{folder.path} has the network {content['settings']['model']['name']}; this needs a ResNet that was "
            "trained on images, such as --model resnet50"
        )
    if shape[0] != 3:
        raise UserError(f"{folder.path} was trained on images of {shape[0]} channel; VOC's have three")
    if weights is not None:
        prefix = "backbone.backbone."
        own = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        network.load_state_dict(own, strict=True)
    return network


def _train(
    model: nn.Module,
    downstream: Downstream,
    settings: TransferSettings,
    device: torch.device,
    checkpoints: Path,
    on_progress: ProgressCallback,
) -> None:
    """SGD with momentum. What a step draws depends on its number alone, so that it can go on anywhere."""
    total = settings.total(len(downstream.data.train))
    optimizer = torch.optim.SGD(_groups(model, settings), lr=1.0, momentum=0.9)
    done = _resumed(model, optimizer, settings, checkpoints)
    model.train()
    with stop_on_signal() as stop:
        while done < total:
            for group in optimizer.param_groups:
                group["lr"] = settings.rate(done, total)
            loss = _loss(model, downstream, settings, device, done)
            if not torch.isfinite(loss):
                raise TrainingError(f"the loss is not finite in step {done + 1} of {total}; lower --lr")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            on_progress(done, total)
            if done < total and (stop or done % _SAVED_EVERY == 0):
                _save(model, optimizer, settings, checkpoints, done)
            if stop and done < total:
                raise Interrupted(f"stopped after step {done} of {total}; the same command goes on")
    if settings.task == "detection" and settings.detector == "c4":
        with averaged_statistics(model), torch.no_grad():
            for number in range(min(_STATISTICS, max(1, total // 10))):
                _loss(model, downstream, settings, device, total + number)


def _groups(model: nn.Module, settings: TransferSettings) -> list[dict[str, Any]]:
    """All weights; those of normalisation do not decay where the protocol of Table 10 holds."""
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)] if settings.usual.milestones else []
    resting = {id(parameter) for norm in norms for parameter in norm.parameters()}
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in learned if id(p) not in resting], "weight_decay": settings.weight_decay},
        {"params": [p for p in learned if id(p) in resting], "weight_decay": 0.0},
    ]


def _loss(
    model: nn.Module, downstream: Downstream, settings: TransferSettings, device: torch.device, step: int
) -> Tensor:
    """Of the samples of this step. torchvision draws regions and sizes from torch's own generator."""
    torch.manual_seed(draw(settings.seed, "transfer step", step))
    assert settings.batch_size is not None
    samples = samples_of_step(downstream.data.train, settings.batch_size, step, settings.seed)
    return downstream.loss(model, samples, device)


def samples_of_step(train: Sequence[Sample], batch_size: int, step: int, seed: int) -> list[Sample]:
    """The next `batch_size` of all samples in one order after another."""
    chosen: list[Sample] = []
    position = step * batch_size
    while len(chosen) < batch_size:
        round_number, start = divmod(position + len(chosen), len(train))
        order = torch.randperm(len(train), generator=seeded(seed, "transfer", round_number))
        chosen += [train[i] for i in order[start : start + batch_size - len(chosen)].tolist()]
    return chosen


def _save(
    model: nn.Module, optimizer: torch.optim.Optimizer, settings: TransferSettings, checkpoints: Path, done: int
) -> None:
    state = {"optimizer": optimizer.state_dict()}
    saved = checkpoint.Checkpoint(epoch=0, step=done, model=model.state_dict(), targets=None, state=state)
    checkpoint.save(checkpoints, saved)


def _resumed(model: nn.Module, optimizer: torch.optim.Optimizer, settings: TransferSettings, checkpoints: Path) -> int:
    """The steps that are done: those of a checkpoint, which is loaded, or none."""
    saved = checkpoint.load_newest(checkpoints) if checkpoints.exists() else None
    if saved is None:
        return 0
    model.load_state_dict(saved.model)
    optimizer.load_state_dict(saved.state["optimizer"])
    return saved.step
