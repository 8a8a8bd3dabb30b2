"""Metrics of semantic segmentation: mIoU, the mean over occurring classes of intersection over union, by pixels.

Shapes: K classes, H by W pixels.
"""

import torch
from torch import Tensor

from selfadapt.data.sources.voc import VOID


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
        correct = self.counts_KK.diagonal().double()
        union = (self.counts_KK.sum(0) + self.counts_KK.sum(1)).double() - correct
        occurs = self.counts_KK.sum(1) > 0
        return {
            "miou": (correct / union)[occurs].mean().item(),
            "pixel_accuracy": (correct.sum() / self.counts_KK.sum().clamp_min(1)).item(),
        }
