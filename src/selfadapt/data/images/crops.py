"""Random resized crops from original images of any size and shape, cut while the file is decoded.

A crop of an image that was first resized to a square misses the ends of a long image and shows small details at low
resolution. The boxes depend only on seed, epoch, sample and view, so neither the number of workers nor the number of
processes changes them, and an epoch can start at any step.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from selfadapt.core.rng import seeded
from selfadapt.data.images.augment import random_boxes
from selfadapt.data.images.decode import Box
from selfadapt.data.images.storage import ImageFiles


@dataclass(frozen=True, kw_only=True)
class RandomCrops:
    """The crops of an epoch: `views` of each image, with a share of its area between `smallest` and 1."""

    smallest: float
    views: int
    seed: int
    epoch: int

    def boxes(self, position: int, width: int, height: int) -> list[Box]:
        """Draw a box for each view of a sample."""
        return [self._box(position, view, width, height) for view in range(self.views)]

    def _box(self, position: int, view: int, width: int, height: int) -> Box:
        generator = seeded(self.seed, "crop", self.epoch, position, view)
        boxes = random_boxes(1, height, width, self.smallest, generator)
        top, left, box_height, box_width = torch.cat(boxes).long().tolist()
        return left, top, left + box_width, top + box_height

    def cut(self, files: ImageFiles, position: int) -> Tensor:
        """Decode the views of one image, V×C×H×W; raise UnreadableImage if that fails."""
        return files.crops(position, lambda width, height: self.boxes(position, width, height))
