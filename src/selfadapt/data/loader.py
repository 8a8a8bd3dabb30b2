"""Loading of batches in an order that depends only on the seed and the epoch (order.py).

Each epoch visits every sample once. The batches of an epoch differ in size by at most one sample, so none is dropped
and no small last batch disturbs batch normalisation.

Augmentation draws its random numbers here, from a stream named by epoch and step; decoding draws only random crops,
from a stream named by the sample (crops.py). So the number of worker processes changes nothing, and an epoch can start
at any step. Data-parallel processes share each batch, and each draws its own augmentation.

Shapes: B samples of a batch, N samples in total, C channels, H by W pixels.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from selfadapt.core.device import to_device
from selfadapt.core.errors import TrainingError
from selfadapt.core.rng import seeded
from selfadapt.data.batch import Batch
from selfadapt.data.dataset import Samples
from selfadapt.data.images.augment import Augment
from selfadapt.data.images.crops import RandomCrops
from selfadapt.data.images.prefetch import read_batches
from selfadapt.data.images.storage import EveryNth, TensorImages
from selfadapt.data.images.transforms import as_floats, resized
from selfadapt.data.inputs import Inputs
from selfadapt.data.order import Shuffle

_PLAIN_BATCH = 256


class Loader(Protocol):
    """The batches of a training loop."""

    num_samples: int
    steps_per_epoch: int
    ids: Sequence[str]

    def epoch(self, epoch: int, start: int = 0, stride: int = 1) -> Iterator[Batch]:
        """Yield every `stride`-th batch of an epoch, from step `start` on."""
        ...

    def plain(self) -> Iterator[Batch]:
        """Yield this process's share of the samples in their order, without augmentation."""
        ...


class SampleLoader:
    """A loader over `Samples`.

    Inputs in memory are moved to the device once, and batches are taken there. Image files are decoded in advance by
    worker processes; an unreadable file is left out of its batch and recorded in `samples.broken`.
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
        shards: int | None = None,
    ) -> None:
        """Create a loader.

        Args:
            samples: The training samples.
            batch_size: Largest batch size, over all processes.
            seed: Seed of the order and of the augmentation.
            device: Device of the batches.
            augment: Augmentation of image batches.
            workers: Number of processes that decode files; by default one for each core.
            part: (r, P): yield the r-th of P shares of each batch, as one of P processes.
            views: 1, or 2 for a second augmented view of each image.
            size_in: Maps an epoch to the size that images are resized to, or to None.
            crop_area: Smallest share of the area of random crops, which are then cut from the original image while
                it is decoded; `augment` does the rest.
            shards: Number of virtual shards; None for a global order. With shards, only the images in memory and the
                labels that this process may get are moved to the device.
        """
        self.ids = samples.ids
        self.num_samples = len(samples)
        self.steps_per_epoch = -(-self.num_samples // batch_size)
        rank, world_size = part
        self.shuffle = Shuffle(
            num_samples=self.num_samples,
            steps=self.steps_per_epoch,
            seed=seed,
            shards=shards,
            rank=rank,
            processes=world_size,
        )
        images, own = samples.inputs, self.shuffle.own
        self.inputs: Inputs = images
        if isinstance(images, TensorImages):
            values_NCHW = images.values_NCHW[own].to(device)
            self.inputs = TensorImages(values_NCHW) if shards is None else EveryNth(values_NCHW, world_size)
        self.labels_n = samples.labels[own].to(device)
        self.seed, self.device, self.augment, self.workers, self.part = seed, device, augment, workers, part
        self.views, self.size_in, self.crop_area = views, size_in, crop_area

    def epoch(self, epoch: int, start: int = 0, stride: int = 1) -> Iterator[Batch]:
        order, steps, several = self.shuffle.order(epoch), range(start, self.steps_per_epoch, stride), self.part[1] > 1
        crops = None
        if self.crop_area is not None:
            crops = RandomCrops(smallest=self.crop_area, views=self.views, seed=self.seed, epoch=epoch)
        own = (order.step(number).dealt.own for number in steps)
        reads = read_batches(self.inputs, own, workers=self.workers, device=self.device, crops=crops)
        for number, read in zip(steps, reads, strict=True):
            if not len(read.index_B):
                position, reason = read.broken[0]
                raise TrainingError(
                    f"none of the {len(read.broken)} images of a batch can be read, such as {self.ids[position]}: "
                    f"{reason}; check that the files still exist, then resume the run"
                )
            step, stream = order.step(number), (epoch, number) + (self.part if several else ())
            index_B = to_device(read.index_B, self.device)
            views = [read.images_BCHW] * self.views if crops is None else read.images_BCHW.unbind(1)
            yield Batch(
                self._view(views[0], epoch, "augment", *stream),
                self._labels(index_B),
                index_B,
                step.size if several else None,
                self._view(views[1], epoch, "second view", *stream) if self.views == 2 else None,
                replace(step.dealt, own=read.index_B),
            )

    def plain(self) -> Iterator[Batch]:
        batches = torch.arange(self.num_samples)[self.shuffle.own].split(_PLAIN_BATCH)
        if self.shuffle.shards is None:
            rank, world_size = self.part
            batches = batches[rank::world_size]
        for read in read_batches(self.inputs, batches, workers=self.workers, device=self.device):
            if len(read.index_B):
                index_B = to_device(read.index_B, self.device)
                yield Batch(as_floats(read.images_BCHW), self._labels(index_B), index_B)

    def _labels(self, index_B: Tensor) -> Tensor:
        return self.labels_n[index_B if self.shuffle.shards is None else index_B // self.part[1]]

    def _view(self, images_BCHW: Tensor, epoch: int, *stream: str | int) -> Tensor:
        """Augment the images with random numbers of this stream and convert them to network input."""
        if self.augment is not None:
            images_BCHW = self.augment(images_BCHW, seeded(self.seed, *stream))
        size = self.size_in(epoch)
        return as_floats(images_BCHW if size is None else resized(images_BCHW, size))
