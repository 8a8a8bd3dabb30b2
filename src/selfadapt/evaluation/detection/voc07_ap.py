"""Average precision by the rules of VOC 2007.

The detections of a class are processed by decreasing score. Each is matched with the object of its image that it
overlaps most. If their IoU reaches the threshold, the first detection of an object is correct and later ones are wrong;
a detection of a difficult object is ignored. Below the threshold it is wrong. Other objects that it overlaps less are
not considered, unlike in COCO.

    AP = mean over r = 0, 0.1, …, 1 of max{precision at recall >= r}        (11 points; 0 if not reached)

AP50 and AP75 use the thresholds 0.5 and 0.75, AP is the mean over 0.5, 0.55, …, 0.95; all are means over the classes.

Shapes: D detections of a class in all images, by decreasing score.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from selfadapt.data.sources.voc import Boxes
from selfadapt.evaluation.detection.coco_ap import IOU_THRESHOLDS, Detections, mean_scores

_POINTS = 11


@dataclass(frozen=True)
class _Matches:
    """The object that each detection of a class overlaps most. Without an object in its image, the IoU is -1."""

    iou_D: Tensor
    object_D: Tensor  # index among all objects of the class
    difficult_D: Tensor
    objects: int  # without difficult ones


def voc07_scores(detections: Sequence[Detections], truth: Sequence[Boxes], num_classes: int) -> dict[str, float]:
    """Return AP, AP50 and AP75 over the images. Classes with only difficult objects, or none, are ignored."""
    by_class = (_match(detections, truth, label) for label in range(1, num_classes + 1))
    return mean_scores(
        [[_average_precision(own, threshold) for threshold in IOU_THRESHOLDS] for own in by_class if own.objects]
    )


def _match(detections: Sequence[Detections], truth: Sequence[Boxes], label: int) -> _Matches:
    from torchvision.ops import box_iou

    scores, ious, indices, difficult = [torch.zeros(0)], [], [], []
    seen = counted = 0
    for image, known in zip(detections, truth, strict=True):
        detected, of_class = image.labels_M == label, known.labels_M == label
        # in float64: 60 of 100 pixels are an IoU of exactly 0.6; the last column is for images without an object
        iou = box_iou(image.boxes_M4[detected].double(), known.boxes_M4[of_class].double())
        best, index = torch.cat([iou, torch.full((len(iou), 1), -1.0).double()], 1).max(1)
        scores.append(image.scores_M[detected])
        ious.append(best)
        indices.append(index + seen)
        difficult.append(torch.cat([known.difficult_M[of_class], torch.zeros(1).bool()])[index])
        seen += int(of_class.sum())
        counted += int((of_class & ~known.difficult_M).sum())
    order = torch.cat(scores).argsort(descending=True, stable=True)
    return _Matches(torch.cat(ious)[order], torch.cat(indices)[order], torch.cat(difficult)[order], counted)


def _average_precision(matches: _Matches, threshold: float) -> float:
    enough_D = matches.iou_D >= threshold
    counts_D = ~(enough_D & matches.difficult_D)
    correct = (enough_D & _first_of_each(matches.object_D, enough_D))[counts_D]
    hits = correct.cumsum(0)
    precision = hits.double() / torch.arange(1, len(hits) + 1)
    # in integers, so that a recall of 3 in 10 is not below 0.3
    reached = hits[None] * (_POINTS - 1) >= torch.arange(_POINTS)[:, None] * matches.objects
    best = torch.where(reached, precision[None], 0.0)
    return best.amax(1).mean().item() if len(hits) else 0.0


def _first_of_each(object_D: Tensor, enough_D: Tensor) -> Tensor:
    """Return whether a detection is the first of its object, among those with enough overlap."""
    position = enough_D.nonzero().flatten()
    order = object_D[position].argsort(stable=True)
    ordered = object_D[position][order]
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[1:] = ordered[1:] != ordered[:-1]
    first = torch.zeros_like(enough_D)
    first[position[order]] = new
    return first
