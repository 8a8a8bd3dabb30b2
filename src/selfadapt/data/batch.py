"""A batch of training samples.

Shapes: B samples of a batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """B inputs (images as floats in 0..1) with their training labels and their positions in the training set."""

    input: Tensor
    label: Tensor
    index: Tensor
    whole: int | None = None  # size of the batch over all processes, if this is one process's share of it
    second: Tensor | None = None  # a second augmented view of each image, for methods that need two

    @property
    def views(self) -> tuple[Tensor, ...]:
        return (self.input,) if self.second is None else (self.input, self.second)

    def __len__(self) -> int:
        return len(self.index)

    def split(self, count: int) -> "list[Batch]":
        """Split into `count` micro-batches of about equal size, or fewer if the batch is smaller than that."""
        seconds = [None] * count if self.second is None else self.second.tensor_split(count)
        inputs, labels, indices = (values.tensor_split(count) for values in (self.input, self.label, self.index))
        parts = zip(inputs, labels, indices, seconds, strict=True)
        return [Batch(x, label, index, second=second) for x, label, index, second in parts if len(index)]


def as_input(images: Tensor) -> Tensor:
    """Convert uint8 images to floats in 0..1; leave other inputs unchanged."""
    return images.float().div_(255) if images.dtype == torch.uint8 else images
