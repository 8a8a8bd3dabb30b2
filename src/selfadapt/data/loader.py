"""Batches, in an order that depends on the seed and the epoch alone.

Every epoch visits every sample once. The batches of an epoch differ in size by one at most, so there is no
small last batch to upset batch normalisation, and none is dropped.

Shapes: B samples of a batch, N samples in all, C channels, H by W pixels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from selfadapt.data.augment import Augment
from selfadapt.data.samples import Samples
from selfadapt.data.seeds import seeded


@dataclass(frozen=True)
class Batch:
    """B images (float, 0..1) with the labels that training may see and their places in the training set."""

    image: Tensor
    label: Tensor
    index: Tensor

    def __len__(self) -> int:
        return len(self.index)

    def split(self, pieces: int) -> "list[Batch]":
        """The batch in so many pieces of about equal size, or fewer if it is that small."""
        parts = zip(
            self.image.tensor_split(pieces),
            self.label.tensor_split(pieces),
            self.index.tensor_split(pieces),
            strict=True,
        )
        return [Batch(*part) for part in parts if len(part[2])]


class Loader(Protocol):
    """What the training loop needs of a pipeline."""

    num_samples: int
    steps_per_epoch: int
    ids: Sequence[str]

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of this epoch from step `start` on."""
        ...


class MemoryLoader:
    """Samples that fit in memory, as one uint8 tensor on the device where the batches are cut."""

    def __init__(
        self, samples: Samples, *, batch_size: int, seed: int, device: torch.device, augment: Augment | None = None
    ) -> None:
        self.images_NCHW = samples.images.to(device)
        self.labels_N = samples.labels.to(device)
        self.ids = samples.ids
        self.num_samples = len(samples)
        self.steps_per_epoch = -(-self.num_samples // batch_size)
        self.seed = seed
        self.augment = augment

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        order_N = torch.randperm(self.num_samples, generator=seeded(self.seed, "order", epoch))
        batches = order_N.tensor_split(self.steps_per_epoch)
        for step in range(start, self.steps_per_epoch):
            index_B = batches[step].to(self.labels_N.device)
            images_BCHW = self.images_NCHW[index_B]
            if self.augment is not None:
                images_BCHW = self.augment(images_BCHW, seeded(self.seed, "augment", epoch, step))
            yield Batch(as_input(images_BCHW), self.labels_N[index_B], index_B)


def as_input(images: Tensor) -> Tensor:
    """uint8 images as the model takes them: float, 0..1, channels last."""
    return (images.float() / 255).contiguous(memory_format=torch.channels_last)
