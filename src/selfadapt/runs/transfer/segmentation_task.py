"""Segmentation on data in VOC's format: the loss of a step, and the scores.

Shapes: B images, C channels, H by W pixels, S the side of the crops.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, interpolate

from selfadapt.core.progress import ProgressCallback
from selfadapt.data.sources.voc import VOC, VOID, Sample
from selfadapt.evaluation.segmentation import Confusion
from selfadapt.models.dense.fcn import FCN

_SCALES = (0.5, 2.0)  # range of random resizing


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
