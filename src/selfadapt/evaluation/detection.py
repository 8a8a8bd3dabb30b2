"""How good detections and segmentations are.

Detection as COCO measures it, on data of VOC's form: AP is the mean over classes and over the overlaps 0.5, 0.55, …
0.95 that a box must have with a true one (intersection over union); AP50 and AP75 are at one overlap. The area under
the precision-recall curve is taken at 101 recalls. Objects marked difficult count neither way.

Segmentation: mIoU is the mean over the classes that occur of intersection over union, by pixels.

Shapes: M boxes, K classes, H by W pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from selfadapt.data.sources.voc import VOID, Boxes

OVERLAPS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))


@dataclass(frozen=True)
class Found:
    """What a detector says of one image."""

    boxes_M4: Tensor
    labels_M: Tensor
    scores_M: Tensor


def overlap(first_A4: Tensor, second_B4: Tensor) -> Tensor:
    """Intersection over union of every pair of boxes (A×B)."""
    corner = torch.maximum(first_A4[:, None, :2], second_B4[None, :, :2])
    opposite = torch.minimum(first_A4[:, None, 2:], second_B4[None, :, 2:])
    shared = (opposite - corner).clamp_min(0).prod(2)
    sizes = [(boxes[:, 2:] - boxes[:, :2]).prod(1) for boxes in (first_A4, second_B4)]
    return shared / (sizes[0][:, None] + sizes[1][None] - shared)


def detection_scores(found: Sequence[Found], truth: Sequence[Boxes], num_classes: int) -> dict[str, float]:
    """AP, AP50 and AP75 over the images. Classes without an object do not count."""
    table = [
        [_average_precision(found, truth, label, least) for least in OVERLAPS] for label in range(1, num_classes + 1)
    ]
    kept = torch.tensor([row for row in table if row[0] is not None], dtype=torch.float64).reshape(-1, len(OVERLAPS))
    if not len(kept):
        return {"ap": 0.0, "ap50": 0.0, "ap75": 0.0}
    mean = kept.mean(0)
    return {"ap": mean.mean().item(), "ap50": mean[0].item(), "ap75": mean[OVERLAPS.index(0.75)].item()}


def _average_precision(found: Sequence[Found], truth: Sequence[Boxes], label: int, least: float) -> float | None:
    """Of one class at one overlap; None without an object of it."""
    scores: list[float] = []
    right: list[bool] = []
    objects = 0
    for image, known in zip(found, truth, strict=True):
        own = known.labels_M == label
        boxes_m4, difficult_m = known.boxes_M4[own], known.difficult_M[own]
        objects += int((~difficult_m).sum())
        said = image.labels_M == label
        order = image.scores_M[said].argsort(descending=True)
        overlaps = overlap(image.boxes_M4[said][order], boxes_m4)
        taken = torch.zeros(len(boxes_m4), dtype=torch.bool)
        for row, score in zip(overlaps, image.scores_M[said][order].tolist(), strict=True):
            # the best box that is still free; one that counts goes before one that does not
            fits = (row >= least) & ~(taken & ~difficult_m)
            counted = fits & ~difficult_m
            if counted.any():
                taken[int(torch.where(counted, row, -1.0).argmax())] = True
            elif fits.any():
                continue  # a difficult one: neither right nor wrong
            scores.append(score)
            right.append(bool(counted.any()))
    if not objects:
        return None
    order = torch.tensor(scores).argsort(descending=True, stable=True)
    hits = torch.tensor(right, dtype=torch.float64)[order].cumsum(0) if scores else torch.zeros(0, dtype=torch.float64)
    recall = hits / objects
    precision = hits / torch.arange(1, len(hits) + 1)
    best = precision.flip(0).cummax(0).values.flip(0) if len(hits) else precision
    wanted = torch.linspace(0, 1, 101, dtype=torch.float64)
    place = torch.searchsorted(recall, wanted - 1e-12)
    return float(torch.cat([best, torch.zeros(1, dtype=torch.float64)])[place].mean())


class Confusion:
    """Counts pixels by true and predicted class, image by image."""

    def __init__(self, num_classes: int) -> None:
        self.counts_KK = torch.zeros(num_classes, num_classes, dtype=torch.int64)

    def add(self, predicted_HW: Tensor, truth_HW: Tensor) -> None:
        size = len(self.counts_KK)
        counted = (truth_HW != VOID) & (truth_HW < size)
        pairs = truth_HW[counted] * size + predicted_HW[counted]
        self.counts_KK += pairs.bincount(minlength=size**2).reshape(size, size)

    def scores(self) -> dict[str, float]:
        right = self.counts_KK.diagonal().double()
        union = (self.counts_KK.sum(0) + self.counts_KK.sum(1)).double() - right
        occurs = self.counts_KK.sum(1) > 0
        return {
            "miou": (right / union)[occurs].mean().item(),
            "pixel_accuracy": (right.sum() / self.counts_KK.sum().clamp_min(1)).item(),
        }
