"""Batches, in an order that depends on the seed and the epoch alone.

Every epoch visits every sample once. The batches of an epoch differ in size by one at most, so there is no
small last batch to upset batch normalisation, and none is dropped.

Augmentation draws its random numbers here, for each step by name, and decoding draws none but the crops of a sample, by
its name (crops.py). So the number of worker processes changes nothing, and an epoch can begin at any step. Several
training processes share each batch; each draws its own augmentation.

Shapes: B samples of a batch, N samples in all, C channels, H by W pixels.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from selfadapt.core.errors import TrainingError
from selfadapt.core.rng import seeded
from selfadapt.data.dataset import Samples
from selfadapt.data.images.augment import Augment, resized
from selfadapt.data.images.crops import RandomCrops
from selfadapt.data.images.prefetch import read_batches
from selfadapt.data.images.storage import TensorImages
from selfadapt.data.inputs import Inputs


@dataclass(frozen=True)
class Batch:
    """B inputs (images: floats in 0..1) with the labels that training may see and their places in the training set."""

    input: Tensor
    label: Tensor
    index: Tensor
    whole: int | None = None  # samples in the batch of all processes together, if this is a part of it
    second: Tensor | None = None  # another view of each image, where two are asked for

    @property
    def views(self) -> tuple[Tensor, ...]:
        return (self.input,) if self.second is None else (self.input, self.second)

    def __len__(self) -> int:
        return len(self.index)

    def split(self, count: int) -> "list[Batch]":
        """The batch in so many micro-batches of about equal size, or fewer if it is that small."""
        seconds = [None] * count if self.second is None else self.second.tensor_split(count)
        parts = zip(
            self.input.tensor_split(count),
            self.label.tensor_split(count),
            self.index.tensor_split(count),
            seconds,
            strict=True,
        )
        return [Batch(own, label, index, second=second) for own, label, index, second in parts if len(index)]


class Loader(Protocol):
    """What the training loop needs of a pipeline."""

    num_samples: int
    steps_per_epoch: int
    ids: Sequence[str]

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of this epoch from step `start` on."""
        ...


class SampleLoader:
    """The pipeline over a set of samples.

    Inputs in one tensor live on the device, and batches are cut there. Image files are decoded ahead of time in
    worker processes; one that turns out broken is left out of its batch, and `samples.broken` tells of it.
    """

    def __init__(
        self,
        samples: Samples,
        *,
        batch_size: int,
        seed: int,
        device: torch.device,
        augment: Augment | None = None,
        workers: int | None = None,
        part: tuple[int, int] = (0, 1),
        views: int = 1,
        size_in: Callable[[int], int | None] = lambda epoch: None,
        crop_area: float | None = None,
    ) -> None:
        """`part` (r, P): give the r-th of P about equal parts of each batch, as one of P processes.

        With two `views`, each image comes twice, augmented anew. `size_in` tells for an epoch the size that its images
        are brought to, if any. `crop_area`: random crops of at least this share of its area are cut from each picture
        as it is decoded, and `augment` does the rest.
        """
        images = samples.inputs
        self.inputs: Inputs = (
            TensorImages(images.values_NCHW.to(device)) if isinstance(images, TensorImages) else images
        )
        self.labels_N = samples.labels.to(device)
        self.ids = samples.ids
        self.num_samples = len(samples)
        self.steps_per_epoch = -(-self.num_samples // batch_size)
        self.seed, self.device, self.augment, self.workers, self.part = seed, device, augment, workers, part
        self.views, self.size_in, self.crop_area = views, size_in, crop_area

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        order_N = torch.randperm(self.num_samples, generator=seeded(self.seed, "order", epoch))
        whole = order_N.tensor_split(self.steps_per_epoch)[start:]
        own, parts = self.part
        batches = [index_B.tensor_split(parts)[own] for index_B in whole]
        crops = None
        if self.crop_area is not None:
            crops = RandomCrops(smallest=self.crop_area, views=self.views, seed=self.seed, epoch=epoch)
        reads = read_batches(self.inputs, batches, workers=self.workers, device=self.device, crops=crops)
        for step, (read, whole_B) in enumerate(zip(reads, whole, strict=True), start):
            if not len(read.index_B):
                position, reason = read.broken[0]
                raise TrainingError(
                    f"no image of a whole batch can be read, such as {self.ids[position]}: {reason}; "
                    "are the data still there?"
                )
            place = (epoch, step) + (self.part if parts > 1 else ())
            index_B = read.index_B.to(self.device)
            views = [read.images_BCHW] * self.views if crops is None else read.images_BCHW.unbind(1)
            yield Batch(
                self._view(views[0], epoch, "augment", *place),
                self.labels_N[index_B],
                index_B,
                len(whole_B) if parts > 1 else None,
                self._view(views[1], epoch, "second view", *place) if self.views == 2 else None,
            )

    def _view(self, images_BCHW: Tensor, epoch: int, *place: str | int) -> Tensor:
        """The images as the model gets them, augmented by draws of this place alone."""
        if self.augment is not None:
            images_BCHW = self.augment(images_BCHW, seeded(self.seed, *place))
        size = self.size_in(epoch)
        return as_input(images_BCHW if size is None else resized(images_BCHW, size))


def as_input(images: Tensor) -> Tensor:
    """Images as the model takes them: float, 0..1."""
    return images.float().div_(255) if images.dtype == torch.uint8 else images
