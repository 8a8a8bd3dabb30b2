"""Detection on data in VOC's format: the loss of a step, and the scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from selfadapt.core.progress import ProgressCallback
from selfadapt.data.sources.voc import VOC, Sample
from selfadapt.evaluation.detection.coco_ap import Detections, coco_scores
from selfadapt.evaluation.detection.voc07_ap import voc07_scores


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
