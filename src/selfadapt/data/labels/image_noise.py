"""Seeded noise in images, for experiments in which the corrupted samples are known.

Shapes: N samples, C channels, H by W pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from selfadapt.core.rng import seeded
from selfadapt.data.dataset import Samples
from selfadapt.data.images.storage import ImageFiles, Shape, TensorImages
from selfadapt.data.inputs import InputKind


@dataclass(frozen=True)
class ImageNoise:
    """A kind of image noise. Its effect depends only on the seed and the id of an image."""

    kind: str
    statistics: tuple[Tensor, Tensor]  # mean and standard deviation of each channel, scaled to 0..1
    seed: int

    def corrupted(self, image_CHW: Tensor, sample_id: str) -> Tensor:
        channels, height, width = image_CHW.shape
        if self.kind == "gaussian":
            mean_C, std_C = self.statistics
            noise = torch.randn(channels, height, width, generator=seeded(self.seed, "gaussian", sample_id))
            return ((noise * std_C.view(-1, 1, 1) + mean_C.view(-1, 1, 1)) * 255).round().clamp(0, 255).to(torch.uint8)
        name = sample_id if self.kind == "random-pixels" else "one permutation for all"
        order = torch.randperm(height * width, generator=seeded(self.seed, "pixels", name))
        return image_CHW.flatten(1)[:, order].view_as(image_CHW)


def corrupt_images(
    samples: Samples, kind: str, corrupted_N: Tensor, statistics: tuple[Tensor, Tensor], seed: int
) -> Samples:
    """Return the samples with noise in the images that `corrupted_N` marks."""
    noise = ImageNoise(kind, statistics, seed)
    inputs: CorruptedImages | TensorImages
    if isinstance(samples.inputs, ImageFiles):
        inputs = CorruptedImages(samples.inputs, noise, corrupted_N, samples.ids)
    else:
        values_NCHW = samples.inputs.read(torch.arange(len(samples)))  # a copy
        for i in corrupted_N.nonzero().flatten().tolist():
            values_NCHW[i] = noise.corrupted(values_NCHW[i], samples.ids[i])
        inputs = TensorImages(values_NCHW)
    return replace(samples, inputs=inputs, clean_inputs=samples.inputs, corrupted=corrupted_N)


@dataclass(frozen=True)
class CorruptedImages:
    """Image files, some of which are corrupted after decoding."""

    kind: ClassVar[InputKind] = "images"
    files: ImageFiles
    noise: ImageNoise
    corrupted_N: Tensor
    ids: Sequence[str]

    @property
    def shape(self) -> Shape:
        return self.files.shape

    def __len__(self) -> int:
        return len(self.files)

    def decode(self, position: int) -> Tensor:
        image_CHW = self.files.decode(position)
        return self.noise.corrupted(image_CHW, self.ids[position]) if self.corrupted_N[position] else image_CHW

    def read(self, index_B: Tensor) -> Tensor:
        return torch.stack([self.decode(position) for position in index_B.tolist()])

    def take(self, index_n: Tensor) -> "CorruptedImages":
        ids = [self.ids[i] for i in index_n.tolist()]
        return replace(self, files=self.files.take(index_n), corrupted_N=self.corrupted_N[index_n], ids=ids)

    def signature(self) -> bytes:
        return self.files.signature()
