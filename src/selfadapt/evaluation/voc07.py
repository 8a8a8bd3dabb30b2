"""Average precision by the rules of VOC 2007.

For a class, all boxes that were said are taken from the surest on. Each is held against the true box of its image that
it overlaps most. If that overlap is enough, it is right the first time the object is found and wrong each time after;
if the object is difficult, it counts neither way. With less overlap it is wrong. So another object that it overlaps
less never comes into question, which is where this differs from `detection_scores`.

    AP = mean over r = 0, 0.1, …, 1 of max{precision at recall >= r}        (11 points; 0 where recall never gets there)

AP50 and AP75 ask for an overlap of 0.5 and 0.75, AP is the mean over 0.5, 0.55, …, 0.95, all as means over the classes.

Shapes: D boxes said of a class, in all images, in the order of their scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from selfadapt.data.sources.voc import Boxes
from selfadapt.evaluation.detection import OVERLAPS, Found, overlap

_POINTS = 11


@dataclass(frozen=True)
class _Matches:
    """The true box that each box said of a class overlaps most; without any in its image, the overlap is -1."""

    overlap_D: Tensor
    object_D: Tensor  # its number among all true boxes of the class
    difficult_D: Tensor
    objects: int  # that count


def voc07_scores(found: Sequence[Found], truth: Sequence[Boxes], num_classes: int) -> dict[str, float]:
    """AP, AP50 and AP75 over the images. Classes without an object that counts are left out."""
    matches = [_matches(found, truth, label) for label in range(1, num_classes + 1)]
    table = torch.tensor(
        [[_average_precision(own, least) for least in OVERLAPS] for own in matches if own.objects], dtype=torch.float64
    )
    if not len(table):
        return {"ap": 0.0, "ap50": 0.0, "ap75": 0.0}
    mean = table.mean(0)
    return {"ap": mean.mean().item(), "ap50": mean[0].item(), "ap75": mean[OVERLAPS.index(0.75)].item()}


def _matches(found: Sequence[Found], truth: Sequence[Boxes], label: int) -> _Matches:
    scores: list[Tensor] = [torch.zeros(0)]
    overlaps: list[Tensor] = [torch.zeros(0, dtype=torch.float64)]
    objects: list[Tensor] = [torch.zeros(0, dtype=torch.int64)]
    difficult: list[Tensor] = [torch.zeros(0, dtype=torch.bool)]
    seen = counted = 0
    for image, known in zip(found, truth, strict=True):
        said, own = image.labels_M == label, known.labels_M == label
        scores.append(image.scores_M[said])
        if own.any():
            # in float64: 60 of 100 pixels are an overlap of 0.6, and no less
            best, position = overlap(image.boxes_M4[said].double(), known.boxes_M4[own].double()).max(1)
            overlaps.append(best)
            objects.append(position + seen)
            difficult.append(known.difficult_M[own][position])
        else:
            none = torch.zeros(int(said.sum()), dtype=torch.float64)
            overlaps.append(none - 1)
            objects.append(none.long())
            difficult.append(none.bool())
        seen += int(own.sum())
        counted += int((own & ~known.difficult_M).sum())
    order = torch.cat(scores).argsort(descending=True, stable=True)
    return _Matches(torch.cat(overlaps)[order], torch.cat(objects)[order], torch.cat(difficult)[order], counted)


def _average_precision(matches: _Matches, least: float) -> float:
    enough_D = matches.overlap_D >= least
    counts_D = ~(enough_D & matches.difficult_D)
    right = (enough_D & counts_D)[counts_D] & _first_of_each(matches.object_D, enough_D)[counts_D]
    hits = right.cumsum(0)
    precision = hits.double() / torch.arange(1, len(hits) + 1)
    # whole numbers, so that a recall of 3 in 10 is not below 0.3
    reached = hits[None] * (_POINTS - 1) >= torch.arange(_POINTS)[:, None] * matches.objects
    best = torch.where(reached, precision[None], 0.0)
    return best.amax(1).mean().item() if len(hits) else 0.0


def _first_of_each(object_D: Tensor, enough_D: Tensor) -> Tensor:
    """Whether a box is the first, among those that overlap enough, to find its object."""
    place = enough_D.nonzero().flatten()
    later = object_D[place].argsort(stable=True)
    ordered = object_D[place][later]
    fresh = torch.ones_like(ordered, dtype=torch.bool)
    fresh[1:] = ordered[1:] != ordered[:-1]
    first = torch.zeros_like(enough_D)
    first[place[later]] = fresh
    return first
