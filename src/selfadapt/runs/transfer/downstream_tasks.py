"""The tasks of a transfer, on data in VOC's format: the loss of a step, and the scores.

Shapes: B images, C channels, H by W pixels, M boxes, S the side of the crops.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from selfadapt.core.progress import ProgressCallback
from selfadapt.data.sources.voc import VOC, VOID, Sample
from selfadapt.evaluation.detection.coco_ap import Detections, coco_scores
from selfadapt.evaluation.detection.voc07_ap import voc07_scores
from selfadapt.evaluation.segmentation import Confusion
from selfadapt.models.dense.fcn import FCN

_SCALES = (0.5, 2.0)  # range of random resizing


class Downstream(Protocol):
    """A task that is learned on top of the features."""

    @property
    def data(self) -> VOC: ...

    def loss(self, model: Any, samples: Sequence[Sample], device: torch.device) -> Tensor: ...

    def measure(self, model: Any, device: torch.device, on_progress: ProgressCallback) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Detection:
    data: VOC
    learns_difficult: bool  # whether to train on objects that are not scored

    def loss(self, model: nn.Module, samples: Sequence[Sample], device: torch.device) -> Tensor:
        images, truths = [], []
        for sample in samples:
            image, boxes = sample.image(), self.data.boxes(sample)
            kept = ~boxes.difficult_M | self.learns_difficult
            corners_M4 = boxes.boxes_M4
            if torch.rand(()) < 0.5:
                image, corners_M4 = image.flip(2), flipped(corners_M4, image.shape[2])
            images.append(image.to(device))
            truths.append({"boxes": corners_M4[kept].to(device), "labels": boxes.labels_M[kept].to(device)})
        losses: dict[str, Tensor] = model(images, truths)
        return torch.stack(list(losses.values())).sum()

    def measure(self, model: nn.Module, device: torch.device, on_progress: ProgressCallback) -> dict[str, Any]:
        found, truth = [], []
        for number, sample in enumerate(self.data.test, start=1):
            (predicted,) = model([sample.image().to(device)])
            found.append(Detections(predicted["boxes"].cpu(), predicted["labels"].cpu(), predicted["scores"].cpu()))
            truth.append(self.data.boxes(sample))
            on_progress(number, len(self.data.test))
        classes = len(self.data.classes)
        return {**coco_scores(found, truth, classes), "voc07": voc07_scores(found, truth, classes)}


def flipped(boxes_M4: Tensor, width: int) -> Tensor:
    """The boxes of the horizontally flipped image."""
    x1, y1, x2, y2 = boxes_M4.unbind(1)
    return torch.stack([width - x2, y1, width - x1, y2], 1)


def pyramid_detector(
    name: str,
    weights: dict[str, Tensor] | None,
    num_classes: int,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    image_size: int,
) -> nn.Module:
    """Faster R-CNN of torchvision with a feature pyramid; `weights` as torchvision names them, None for random ones."""
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

    # Batches are small, so the statistics of pretrained weights stay frozen.
    norm = {"norm_layer": nn.BatchNorm2d} if weights is None else {}
    pyramid = resnet_fpn_backbone(backbone_name=name, weights=None, trainable_layers=5, **norm)
    if weights is not None:
        pyramid.body.load_state_dict(weights, strict=True)
    model: nn.Module = FasterRCNN(
        pyramid, num_classes + 1, min_size=image_size, max_size=2 * image_size, image_mean=mean, image_std=std
    )
    return model


@dataclass(frozen=True)
class Segmentation:
    data: VOC
    crop: int

    def loss(self, model: FCN, samples: Sequence[Sample], device: torch.device) -> Tensor:
        """Cross entropy over the labelled pixels. Crops are padded with the mean colour, which counts as void."""
        batch = model.mean_C11.cpu().expand(len(samples), -1, self.crop, self.crop).clone()
        goal = torch.full((len(samples), self.crop, self.crop), VOID)
        for position, sample in enumerate(samples):
            image, mask = _augmented(sample.image(), sample.mask(), self.crop)
            batch[position, :, : image.shape[1], : image.shape[2]] = image
            goal[position, : mask.shape[0], : mask.shape[1]] = mask
        total = cross_entropy(model(batch.to(device)), goal.to(device), ignore_index=VOID, reduction="sum")
        return total / (goal != VOID).sum().clamp_min(1)

    def measure(self, model: FCN, device: torch.device, on_progress: ProgressCallback) -> dict[str, Any]:
        confusion = Confusion(len(self.data.classes) + 1)
        for number, sample in enumerate(self.data.test, start=1):
            predicted_HW = model(sample.image()[None].to(device))[0].argmax(0).cpu()
            confusion.add(predicted_HW, sample.mask())
            on_progress(number, len(self.data.test))
        return confusion.scores()


def _augmented(image_CHW: Tensor, mask_HW: Tensor, crop: int) -> tuple[Tensor, Tensor]:
    """Resize both at random, flip them at random, and cut them to a random crop if they are larger."""
    least, most = _SCALES
    factor = least + (most - least) * float(torch.rand(()))
    size = [max(1, round(side * factor)) for side in mask_HW.shape]
    image_CHW = interpolate(image_CHW[None], size, mode="bilinear", align_corners=False)[0]
    mask_HW = interpolate(mask_HW[None, None].float(), size, mode="nearest")[0, 0].long()
    if torch.rand(()) < 0.5:
        image_CHW, mask_HW = image_CHW.flip(2), mask_HW.flip(1)
    top, left = (int(torch.randint(max(side - crop, 0) + 1, ())) for side in size)
    rows, columns = slice(top, top + crop), slice(left, left + crop)
    return image_CHW[:, rows, columns], mask_HW[rows, columns]
