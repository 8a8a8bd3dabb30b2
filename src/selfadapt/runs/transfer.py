"""Where features go: detection (Faster R-CNN with a feature pyramid) and segmentation (FCN with a dilated backbone).

Both are torchvision's, with the backbone of a run; data are in VOC's form. Sizes and rates are options, because VOC at
full size asks for GPUs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from selfadapt.data.seeds import seeded
from selfadapt.data.voc import VOC, VOID
from selfadapt.engine import checkpoint
from selfadapt.errors import TrainingError, UserError
from selfadapt.evaluation.transfer import Confusion, Found, detection_scores
from selfadapt.progress import ProgressCallback
from selfadapt.report.results import RunFolder
from selfadapt.runs.environment import choose_device
from selfadapt.runs.export import torchvision_weights

Task = Literal["detection", "segmentation"]


@dataclass(frozen=True, kw_only=True)
class TransferSettings:
    task: Task
    epochs: int = 26
    batch_size: int = 4
    lr: float = 0.01
    weight_decay: float = 1e-4
    image_size: int = 480  # of the shorter side, for detection
    scratch: bool = False  # begin with random weights instead, to compare
    seed: int = 0


def transfer(
    folder: RunFolder, root: Path, settings: TransferSettings, device: str, on_progress: ProgressCallback
) -> dict[str, Any]:
    """Train a detector or a segmenter on the features of a run and measure it; written into the run folder."""
    if min(settings.epochs, settings.batch_size, settings.image_size) < 1:
        raise UserError("--epochs, --batch-size and --image-size must be at least 1")
    if not 0 < settings.lr < float("inf"):
        raise UserError(f"--lr {settings.lr} must be a number above 0")
    content = folder.read_run()
    saved = checkpoint.load_newest(folder.checkpoints)
    if saved is None:
        raise UserError(f"{folder.path} holds no trained network")
    weights = torchvision_weights(content, saved.model)
    body = {name: value for name, value in weights.items() if not name.startswith("fc.")}
    scale = [saved.model[f"backbone.{part}_C11"].flatten().tolist() for part in ("mean", "std")]
    torch.manual_seed(settings.seed)
    own, name = choose_device(device), content["settings"]["model"]["name"]
    if settings.task == "detection":
        data = VOC.detection(root)
        model = _detector(name, None if settings.scratch else body, scale, len(data.classes) + 1, settings.image_size)
        step, measure = _detection_step, _detect
    else:
        data = VOC.segmentation(root)
        model = _segmenter(name, None if settings.scratch else body, scale, len(data.classes) + 1)
        step, measure = _segmentation_step, _segment
    model.to(own)
    _train(model, data, settings, step, own, on_progress)
    model.eval()
    with torch.inference_mode():
        scores = measure(model, data, own, on_progress)
    result = {"task": settings.task, "scratch": settings.scratch, "images": len(data.test), **scores}
    kept = folder.read_if_there(folder.transfer_file) or {}
    folder.write_transfer({**kept, f"{root.name} {settings.task}{' scratch' if settings.scratch else ''}": result})
    return result


def _detector(
    name: str, body: dict[str, Tensor] | None, scale: list[list[float]], num_classes: int, size: int
) -> nn.Module:
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

    # Batches are small, so learned statistics are kept as they are; random weights have none to keep.
    norm = {"norm_layer": nn.BatchNorm2d} if body is None else {}
    pyramid = resnet_fpn_backbone(backbone_name=name, weights=None, trainable_layers=5, **norm)
    if body is not None:
        pyramid.body.load_state_dict(body, strict=True)
    model: nn.Module = FasterRCNN(
        pyramid, num_classes, min_size=size, max_size=2 * size, image_mean=scale[0], image_std=scale[1]
    )
    return model


class _Scaled(nn.Module):
    """A segmenter behind the normalisation that its backbone was trained with."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, scale: list[list[float]]) -> None:
        super().__init__()
        self.network = network
        mean, std = (torch.tensor(part).view(1, -1, 1, 1) for part in scale)
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        said: Tensor = self.network((images_BCHW - self.mean) / self.std)["out"]
        return said


def _segmenter(name: str, body: dict[str, Tensor] | None, scale: list[list[float]], num_classes: int) -> nn.Module:
    from torchvision.models import segmentation

    if name not in ("resnet50", "resnet101"):
        raise UserError(f"torchvision's FCN has a dilated resnet50 or resnet101, not {name}; pre-train one of those")
    make = {"resnet50": segmentation.fcn_resnet50, "resnet101": segmentation.fcn_resnet101}[name]
    network = make(weights=None, weights_backbone=None, num_classes=num_classes)
    if body is not None:
        network.backbone.load_state_dict(body, strict=True)
    return _Scaled(network, scale)


def _train(
    model: nn.Module,
    data: VOC,
    settings: TransferSettings,
    step: Callable[[nn.Module, VOC, Sequence[str], torch.device], Tensor],
    device: torch.device,
    on_progress: ProgressCallback,
) -> None:
    """SGD with momentum; the rate grows over the first tenth of the steps and then falls in a line to zero."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=settings.lr, momentum=0.9, weight_decay=settings.weight_decay)
    per_epoch = -(-len(data.train) // settings.batch_size)
    total, done = settings.epochs * per_epoch, 0
    model.train()
    for epoch in range(settings.epochs):
        order = torch.randperm(len(data.train), generator=seeded(settings.seed, "transfer", epoch))
        for index_B in order.tensor_split(per_epoch):
            rate = settings.lr * min((done + 1) / max(1, total // 10), 1 - done / total)
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = step(model, data, [data.train[i] for i in index_B.tolist()], device)
            if not torch.isfinite(loss):
                raise TrainingError(f"the loss is not finite in epoch {epoch + 1}; lower --lr")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            on_progress(done, total)


def _detection_step(model: nn.Module, data: VOC, samples: Sequence[str], device: torch.device) -> Tensor:
    images, truths = [], []
    for sample in samples:
        image, boxes = data.image(sample), data.boxes(sample)
        kept = ~boxes.difficult_M
        if torch.rand(()) < 0.5:
            image = image.flip(2)
            x1, y1, x2, y2 = boxes.boxes_M4.unbind(1)
            width = float(image.shape[2])
            corners = torch.stack([width - x2, y1, width - x1, y2], 1)
        else:
            corners = boxes.boxes_M4
        images.append(image.to(device))
        truths.append({"boxes": corners[kept].to(device), "labels": boxes.labels_M[kept].to(device)})
    losses: dict[str, Tensor] = model(images, truths)
    return torch.stack(list(losses.values())).sum()


def _detect(model: nn.Module, data: VOC, device: torch.device, on_progress: ProgressCallback) -> dict[str, float]:
    found, truth = [], []
    for number, sample in enumerate(data.test, start=1):
        (said,) = model([data.image(sample).to(device)])
        found.append(Found(said["boxes"].cpu(), said["labels"].cpu(), said["scores"].cpu()))
        truth.append(data.boxes(sample))
        on_progress(number, len(data.test))
    return detection_scores(found, truth, len(data.classes))


def _segmentation_step(model: nn.Module, data: VOC, samples: Sequence[str], device: torch.device) -> Tensor:
    """Images of several sizes are padded to the largest; the padding does not count."""
    images, masks = [data.image(sample) for sample in samples], [data.mask(sample) for sample in samples]
    height, width = (max(image.shape[side] for image in images) for side in (1, 2))
    batch = torch.zeros(len(images), 3, height, width)
    goal = torch.full((len(images), height, width), VOID)
    for position, (image, mask) in enumerate(zip(images, masks, strict=True)):
        if torch.rand(()) < 0.5:
            image, mask = image.flip(2), mask.flip(1)
        batch[position, :, : image.shape[1], : image.shape[2]] = image
        goal[position, : mask.shape[0], : mask.shape[1]] = mask
    total = cross_entropy(model(batch.to(device)), goal.to(device), ignore_index=VOID, reduction="sum")
    return total / (goal != VOID).sum().clamp_min(1)


def _segment(model: nn.Module, data: VOC, device: torch.device, on_progress: ProgressCallback) -> dict[str, float]:
    confusion = Confusion(len(data.classes) + 1)
    for number, sample in enumerate(data.test, start=1):
        predicted_HW = model(data.image(sample)[None].to(device))[0].argmax(0).cpu()
        confusion.add(predicted_HW, data.mask(sample))
        on_progress(number, len(data.test))
    return confusion.scores()
