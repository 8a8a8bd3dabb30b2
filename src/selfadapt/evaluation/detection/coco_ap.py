"""Average precision by the rules of COCO, for data in VOC format.

AP is the mean over classes and over the IoU thresholds 0.5, 0.55, … 0.95; AP50 and AP75 use a single threshold. The
precision-recall curve is sampled at 101 recalls. Objects marked as difficult are ignored.

Shapes: M boxes of an image, m of them of one class.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from selfadapt.data.sources.voc import Boxes

IOU_THRESHOLDS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))


@dataclass(frozen=True)
class Detections:
    """The boxes that a detector found in one image."""

    boxes_M4: Tensor
    labels_M: Tensor
    scores_M: Tensor


def coco_scores(detections: Sequence[Detections], truth: Sequence[Boxes], num_classes: int) -> dict[str, float]:
    """Return AP, AP50 and AP75 over the images. Classes without objects are ignored."""
    rows = (
        [_average_precision(detections, truth, label, threshold) for threshold in IOU_THRESHOLDS]
        for label in range(1, num_classes + 1)
    )
    return mean_scores([row for row in rows if row[0] is not None])


def mean_scores(by_class: Sequence[Sequence[float | None]]) -> dict[str, float]:
    """Return AP, AP50 and AP75 from the average precision of each class at each threshold."""
    if not by_class:
        return {"ap": 0.0, "ap50": 0.0, "ap75": 0.0}
    mean = torch.tensor(by_class, dtype=torch.float64).mean(0)
    return {"ap": mean.mean().item(), "ap50": mean[0].item(), "ap75": mean[IOU_THRESHOLDS.index(0.75)].item()}


def _average_precision(
    detections: Sequence[Detections], truth: Sequence[Boxes], label: int, threshold: float
) -> float | None:
    """Return the average precision of a class at an IoU threshold; None without an object of it."""
    from torchvision.ops import box_iou

    scores: list[float] = []
    correct: list[bool] = []
    objects = 0
    for image, known in zip(detections, truth, strict=True):
        of_class = known.labels_M == label
        boxes_m4, difficult_m = known.boxes_M4[of_class], known.difficult_M[of_class]
        objects += int((~difficult_m).sum())
        detected = image.labels_M == label
        order = image.scores_M[detected].argsort(descending=True)
        ious = box_iou(image.boxes_M4[detected][order], boxes_m4)
        matched = torch.zeros(len(boxes_m4), dtype=torch.bool)
        for row, score in zip(ious, image.scores_M[detected][order].tolist(), strict=True):
            # the best unmatched box; ordinary boxes take precedence over difficult ones
            fits = (row >= threshold) & ~(matched & ~difficult_m)
            counted = fits & ~difficult_m
            if counted.any():
                matched[int(torch.where(counted, row, -1.0).argmax())] = True
            elif fits.any():
                continue  # a difficult box: ignored
            scores.append(score)
            correct.append(bool(counted.any()))
    if not objects:
        return None
    order = torch.tensor(scores).argsort(descending=True, stable=True)
    hits = torch.tensor(correct, dtype=torch.float64)[order].cumsum(0)
    precision = hits / torch.arange(1, len(hits) + 1)
    best = precision.flip(0).cummax(0).values.flip(0) if len(hits) else precision
    recalls = torch.linspace(0, 1, 101, dtype=torch.float64)
    position = torch.searchsorted(hits / objects, recalls - 1e-12)
    return float(torch.cat([best, torch.zeros(1, dtype=torch.float64)])[position].mean())
