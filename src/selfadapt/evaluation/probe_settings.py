"""Settings of linear evaluation. This module does not import torch, so that help is quick."""

import math
from dataclasses import dataclass

from selfadapt.core.settings import setting


@dataclass(frozen=True, kw_only=True)
class ProbeSettings:
    epochs: int = setting(100, "Number of epochs")
    batch_size: int = 512
    lr: float = setting(0.4, "Learning rate. The paper uses 2 for ImageNet")
    schedule: str = setting(
        "step",
        "Schedule: step (divide by 10 after 60 and 80 % of the epochs), or cosine, as the paper for ImageNet",
    )
    augment: str = setting(
        "none",
        "Also train a classifier on features of augmented images: resized-crop (as in the paper) or another "
        "augmentation of `train`. Each epoch runs the network on every image",
    )
    milestones: tuple[int, ...] = (60, 80)  # of 100 epochs
    neighbours: int = 200
    temperature: float = 0.07  # of the votes of the neighbours
    seed: int = setting(0, "Random seed")

    def rate(self, epoch: int) -> float:
        if self.schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * epoch / self.epochs)) / 2
        return self.lr * 0.1 ** sum(100 * epoch >= milestone * self.epochs for milestone in self.milestones)
