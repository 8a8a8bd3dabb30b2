"""Fine-tune the backbone of a run for detection (Faster R-CNN) or segmentation (FCN), on data in VOC's format.

Everything runs in one process, so batch normalisation uses the whole batch, as synchronised batch normalisation would.
"""

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from selfadapt.core.device import choose_device
from selfadapt.core.errors import Interrupted, TrainingError, UserError
from selfadapt.core.progress import ProgressCallback
from selfadapt.core.rng import draw, seeded
from selfadapt.data.inputs import InputSpec
from selfadapt.data.row_cache import content_digest
from selfadapt.data.sources.voc import VOC, Sample
from selfadapt.engine import checkpoint
from selfadapt.engine.interrupt import stop_on_signal
from selfadapt.models.backbones.resnet import ResNet
from selfadapt.models.batch_norm.batch_statistics import averaged_statistics
from selfadapt.models.dense.faster_rcnn_c4 import c4_detector
from selfadapt.models.dense.fcn import FCN
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.plan import Plan
from selfadapt.runs.export.network_files import torchvision_weights
from selfadapt.runs.lifecycle.network import bare_backbone
from selfadapt.runs.lifecycle.saved_network import newest_checkpoint
from selfadapt.runs.transfer.downstream_tasks import Detection, Downstream, Segmentation, pyramid_detector
from selfadapt.runs.transfer.transfer_settings import TransferPlan, TransferSettings

_SAVED_EVERY = 500  # steps
_STATISTICS = 200  # batches over which the C4 detector averages the statistics of batch normalisation


def transfer(
    folder: RunFolder, roots: Sequence[Path], settings: TransferSettings, device: str, on_progress: ProgressCallback
) -> dict[str, Any]:
    """Train a detector or a segmenter on the features of a run, evaluate it, and write transfer.json.

    An interrupted training resumes from its last checkpoint.

    Args:
        folder: The run whose backbone is fine-tuned.
        roots: Folders in VOC's format. The first is used for testing, the training lists of all for training.
        settings: What the user gave.
        device: Such as "auto", "cpu" or "cuda".
        on_progress: Called with steps done and steps in total.

    Returns:
        The task and its scores, as in transfer.json.
    """
    plan, own = settings.resolved(), choose_device(device)
    torch.manual_seed(plan.seed)
    downstream, model = _task_and_model(folder, roots, plan)
    model.to(own)
    key = f"{'+'.join(root.name for root in roots)} {plan.name}"
    digest = content_digest(json.dumps([asdict(plan), *(str(root.resolve()) for root in roots)]).encode()).hex()
    checkpoints = folder.path / "transfer" / f"{re.sub(r'[^A-Za-z0-9+]+', '-', key)}-{digest}"
    _train(model, downstream, plan, own, checkpoints, on_progress)
    model.eval()
    with torch.inference_mode():
        scores = downstream.measure(model, own, on_progress)
    detector = plan.detector if plan.detector != "pyramid" else None
    count = len(downstream.data.test)
    result = {"task": plan.task, "detector": detector, "scratch": plan.scratch, "images": count, **scores}
    folder.add_json(folder.transfer_file, Any, key, result)
    shutil.rmtree(checkpoints, ignore_errors=True)
    return result


def _task_and_model(folder: RunFolder, roots: Sequence[Path], plan: TransferPlan) -> tuple[Downstream, nn.Module]:
    content = folder.read_run()
    saved = newest_checkpoint(folder)
    scale = _normalisation(saved.model)
    if plan.task == "detection" and plan.detector == "pyramid":
        body = {k: v for k, v in torchvision_weights(content, saved.model).items() if not k.startswith("fc.")}
        data, name = VOC.detection(roots), content["settings"]["model"]["name"]
        weights = None if plan.scratch else body
        detector = pyramid_detector(name, weights, len(data.classes), **scale, image_size=plan.image_size)
        return Detection(data, learns_difficult=False), detector
    network = _network(folder, content, None if plan.scratch else saved.model)
    if plan.task == "segmentation":
        data = VOC.segmentation(roots)
        return Segmentation(data, plan.image_size), FCN(network, len(data.classes) + 1, **scale)
    data = VOC.detection(roots)
    detector = c4_detector(network, len(data.classes), **scale, image_size=plan.image_size, regions=plan.regions)
    return Detection(data, learns_difficult=True), detector


def _normalisation(model: dict[str, Tensor]) -> dict[str, list[float]]:
    """Mean and standard deviation of each channel, as the network of the run was trained with."""
    return {part: model[f"backbone.{part}_C11"].flatten().tolist() for part in ("mean", "std")}


def _network(folder: RunFolder, content: dict[str, Any], weights: dict[str, Tensor] | None) -> ResNet:
    """The backbone of a run with these weights, or with random ones."""
    model, shape = Plan.of(folder, content["settings"]["kind"]).model, tuple(content["data"]["shape"])
    network = bare_backbone(model, InputSpec.of(shape)) if len(shape) == 3 else None
    if not isinstance(network, ResNet):
        raise UserError(
            f"{folder.path} has the network {content['settings']['model']['name']}; this needs a ResNet that was "
            "trained on images, such as --model resnet50"
        )
    if shape[0] != 3:
        raise UserError(f"{folder.path} was trained on images of {shape[0]} channel; VOC images have three")
    if weights is not None:
        prefix = "backbone.backbone."
        own = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        network.load_state_dict(own, strict=True)
    return network


def _train(
    model: nn.Module,
    downstream: Downstream,
    plan: TransferPlan,
    device: torch.device,
    checkpoints: Path,
    on_progress: ProgressCallback,
) -> None:
    """SGD with momentum. Random numbers depend only on the step number, so training can resume after any step."""
    total = plan.total(len(downstream.data.train))
    optimizer = torch.optim.SGD(_groups(model, plan), lr=1.0, momentum=0.9)
    done = _resume(model, optimizer, checkpoints)
    model.train()
    with stop_on_signal() as stop:
        while done < total:
            for group in optimizer.param_groups:
                group["lr"] = plan.rate(done, total)
            loss = _loss(model, downstream, plan, device, done)
            if not torch.isfinite(loss):
                raise TrainingError(f"the loss is not finite in step {done + 1} of {total}; lower --lr")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            on_progress(done, total)
            if done < total and (stop or done % _SAVED_EVERY == 0):
                _save(model, optimizer, checkpoints, done)
            if stop and done < total:
                raise Interrupted(f"stopped after step {done} of {total}; run the same command to resume")
    if plan.task == "detection" and plan.detector == "c4":
        with averaged_statistics(model), torch.no_grad():
            for number in range(min(_STATISTICS, max(1, total // 10))):
                _loss(model, downstream, plan, device, total + number)


def _groups(model: nn.Module, plan: TransferPlan) -> list[dict[str, Any]]:
    """All weights; those of normalisation layers do not decay under the protocol of Table 10."""
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)] if plan.milestones else []
    undecayed = {id(parameter) for norm in norms for parameter in norm.parameters()}
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in trainable if id(p) not in undecayed], "weight_decay": plan.weight_decay},
        {"params": [p for p in trainable if id(p) in undecayed], "weight_decay": 0.0},
    ]


def _loss(model: nn.Module, downstream: Downstream, plan: TransferPlan, device: torch.device, step: int) -> Tensor:
    """Loss of the samples of this step. torchvision draws regions and sizes from torch's global generator."""
    torch.manual_seed(draw(plan.seed, "transfer step", step))
    samples = samples_of_step(downstream.data.train, plan.batch_size, step, plan.seed)
    return downstream.loss(model, samples, device)


def samples_of_step(train: Sequence[Sample], batch_size: int, step: int, seed: int) -> list[Sample]:
    """The samples of a batch; each pass over the data has its own random order."""
    chosen: list[Sample] = []
    position = step * batch_size
    while len(chosen) < batch_size:
        round_number, start = divmod(position + len(chosen), len(train))
        order = torch.randperm(len(train), generator=seeded(seed, "transfer", round_number))
        chosen += [train[i] for i in order[start : start + batch_size - len(chosen)].tolist()]
    return chosen


def _save(model: nn.Module, optimizer: torch.optim.Optimizer, checkpoints: Path, done: int) -> None:
    state = {"optimizer": optimizer.state_dict()}
    saved = checkpoint.Checkpoint(epoch=0, step=done, model=model.state_dict(), targets=None, state=state)
    checkpoint.save(checkpoints, saved)()


def _resume(model: nn.Module, optimizer: torch.optim.Optimizer, checkpoints: Path) -> int:
    """Load the newest checkpoint, if there is one, and return the number of steps done."""
    saved = checkpoint.load_newest(checkpoints) if checkpoints.exists() else None
    if saved is None:
        return 0
    model.load_state_dict(saved.model)
    optimizer.load_state_dict(saved.state["optimizer"])
    return saved.step
