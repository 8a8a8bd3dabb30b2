"""Random resized crops from pictures themselves, whatever their size and shape, cut by whoever decodes the file.

A crop from a square that was resized first never sees the ends of a long picture, and sees few pixels of a small part.
Which box is cut depends on the seed, the epoch, the sample and the view alone, so neither the number of workers nor
that of processes changes it, and an epoch can begin at any step.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from selfadapt.core.rng import seeded
from selfadapt.data.images.augment import random_boxes
from selfadapt.data.images.storage import Box, ImageFiles


@dataclass(frozen=True, kw_only=True)
class RandomCrops:
    """The crops of an epoch: `views` of each picture, of a share of its area from `smallest` to all of it."""

    smallest: float
    views: int
    seed: int
    epoch: int

    def boxes(self, position: int, width: int, height: int) -> list[Box]:
        """A box for each view of this sample."""
        return [self._box(position, view, width, height) for view in range(self.views)]

    def _box(self, position: int, view: int, width: int, height: int) -> Box:
        generator = seeded(self.seed, "crop", self.epoch, position, view)
        drawn = torch.cat(random_boxes(1, height, width, self.smallest, generator)).long().tolist()
        top, left, tall, wide = drawn
        return left, top, left + wide, top + tall

    def cut(self, files: ImageFiles, position: int) -> Tensor:
        """The views of one picture, V×C×H×W; raises UnreadableImage."""
        return files.crops(position, lambda width, height: self.boxes(position, width, height))
