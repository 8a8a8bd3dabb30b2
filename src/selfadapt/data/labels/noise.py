"""Seeded noise in labels or images, for experiments in which the truth is known.

Every kind corrupts a sample with probability `rate`. Shapes: N samples, K classes, C channels, H by W pixels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from selfadapt.core.errors import UserError
from selfadapt.core.rng import seeded
from selfadapt.data.dataset import Data, Samples, channel_statistics
from selfadapt.data.images.prefetch import read_batches
from selfadapt.data.images.storage import ImageFiles, Shape, TensorImages

LabelKind = Literal["symmetric", "symmetric-other", "asymmetric", "instance", "matrix"]
ImageKind = Literal["gaussian", "random-pixels", "shuffled-pixels"]
KINDS = (*get_args(LabelKind), *get_args(ImageKind))

_READ_AT_ONCE = 64  # images; many such batches wait in memory while files are decoded

# The paper's rules for CIFAR10 (Section 4.2). Elsewhere a class becomes the next one, in a circle.
CIFAR10_FLIPS = {"truck": "automobile", "bird": "airplane", "deer": "horse", "cat": "dog", "dog": "cat"}


@dataclass(frozen=True, kw_only=True)
class Noise:
    """A kind of noise and the probability with which it corrupts a sample."""

    kind: str
    rate: float
    file: Path | None = None  # of the transition matrix, for kind matrix

    @classmethod
    def parse(cls, text: str) -> "Noise":
        """The noise that KIND:RATE names, such as symmetric:0.4; or matrix:FILE."""
        kind, _, value = text.partition(":")
        if kind == "matrix" and value:
            return cls(kind=kind, rate=1.0, file=Path(value))
        try:
            rate = float(value)
        except ValueError:
            rate = -1.0
        if kind not in KINDS or kind == "matrix" or not 0 <= rate <= 1:
            kinds = ", ".join(kind for kind in KINDS if kind != "matrix")
            raise UserError(
                f"--noise {text!r} is not KIND:RATE with KIND one of {kinds} and RATE within 0..1, nor matrix:FILE"
            )
        return cls(kind=kind, rate=rate)

    def __str__(self) -> str:
        return f"{self.kind}:{self.rate:g}" if self.file is None else f"{self.kind}:{self.file}"

    def resolved(self) -> "Noise":
        """The same noise with an absolute path."""
        return self if self.file is None else replace(self, file=self.file.resolve())

    @property
    def of_images(self) -> bool:
        return self.kind in get_args(ImageKind)


def corrupt(data: Data, noise: Noise, seed: int) -> Data:
    """The data with noise in training and validation. Test data stay as they are."""
    if noise.of_images and len(data.train.inputs.shape) != 3:
        raise UserError(f"--noise {noise} is of images, and {data.name} holds vectors; choose a kind of label noise")
    statistics = channel_statistics(data.train.inputs) if noise.of_images else None

    def corrupted(part: str, samples: Samples) -> Samples:
        generator = seeded(seed, "noise", part)
        if statistics is None:
            return samples.relabelled(noisy_labels(noise, data, samples, generator, seed))
        corrupted_N = torch.rand(len(samples), generator=generator) < noise.rate
        return corrupt_images(samples, noise.kind, corrupted_N, statistics, seed)

    return replace(
        data,
        train=corrupted("train", data.train),
        validation=None if data.validation is None else corrupted("validation", data.validation),
    )


def noisy_labels(noise: Noise, data: Data, samples: Samples, generator: torch.Generator, seed: int) -> Tensor:
    """The labels after noise of this kind."""
    labels_N, num_classes = samples.labels, data.num_classes
    corrupted_N = torch.rand(len(labels_N), generator=generator) < noise.rate
    if noise.kind == "instance":
        return _instance_dependent(noise.rate, samples, num_classes, generator, seed)
    if noise.kind == "symmetric":  # redrawn over all classes, its own among them
        drawn_N = torch.randint(num_classes, labels_N.shape, generator=generator)
    elif noise.kind == "symmetric-other":
        drawn_N = (labels_N + torch.randint(1, num_classes, labels_N.shape, generator=generator)) % num_classes
    elif noise.kind == "asymmetric":
        drawn_N = flips(data.classes)[labels_N]
    else:
        assert noise.file is not None
        matrix_KK = transition_matrix(noise.file, num_classes)
        drawn_N = torch.multinomial(matrix_KK[labels_N], 1, generator=generator).squeeze(1)
    return torch.where(corrupted_N, drawn_N, labels_N)


def flips(classes: Sequence[str]) -> Tensor:
    """The class that each class is mistaken for: CIFAR10's look-alikes, or the next class in a circle."""
    number = {name: k for k, name in enumerate(classes)}
    if {*CIFAR10_FLIPS, *CIFAR10_FLIPS.values()} <= set(classes):
        return torch.tensor([number[CIFAR10_FLIPS.get(name, name)] for name in classes])
    return (torch.arange(len(classes)) + 1) % len(classes)


def transition_matrix(path: Path, num_classes: int) -> Tensor:
    """A user's matrix of P(given label | true label), from .npy or .csv: K rows that sum to 1."""
    try:
        loaded: Any = (
            np.load(path, allow_pickle=False) if path.suffix == ".npy" else np.loadtxt(path, delimiter=",", ndmin=2)
        )
        matrix = np.asarray(loaded, np.float64)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"the transition matrix {path} cannot be read: {error}") from error
    if matrix.shape != (num_classes, num_classes):
        raise UserError(f"the transition matrix {path} is {matrix.shape}; the data have {num_classes} classes")
    wrong = np.flatnonzero(~((matrix >= 0).all(1) & (np.abs(matrix.sum(1) - 1) < 1e-6)))
    if wrong.size:
        raise UserError(f"the transition matrix {path}: row {wrong[0]} must hold numbers from 0 that sum to 1")
    return torch.from_numpy(matrix)


def _instance_dependent(
    rate: float, samples: Samples, num_classes: int, generator: torch.Generator, seed: int
) -> Tensor:
    """Noise that depends on the image (Xia et al., "Part-dependent Label Noise", 2020, Algorithm 2, and their program).

        q_i ~ N(rate, 0.1^2) within 0..1,    W_k of normal numbers for each class k
        P(given j | image i of class k) = q_i softmax_j(x_i W_k) over the other classes,    1 - q_i for k itself

    x are the raw numbers, for images 0..255 and not scaled: so one other class has nearly all of the odds, and which
    it is depends on the image. Near 0 and 1 the mean of q is not the rate; a rate of 0 is no noise.
    """
    if rate == 0:
        return samples.labels
    own_rate_N = truncated_normal(rate, 0.1, len(samples), generator)
    noisy_N = samples.labels.clone()
    by_class = [(k, (samples.labels == k).nonzero().flatten()) for k in range(num_classes)]
    batches = [(k, index_B) for k, members in by_class for index_B in members.split(512) if len(index_B)]
    pieces = [index_B.split(_READ_AT_ONCE) for _, index_B in batches]
    reads = read_batches(samples.inputs, [index_b for of_batch in pieces for index_b in of_batch])
    last, weights_FK = -1, torch.empty(0)
    for (k, _), of_batch in zip(batches, pieces, strict=True):
        fine = [read for read in islice(reads, len(of_batch)) if len(read.index_B)]
        if not fine:  # broken files keep their label
            continue
        if k != last:
            last = k
            weights_FK = torch.randn(
                math.prod(samples.inputs.shape), num_classes, generator=seeded(seed, "instance", k)
            )
        index_B = torch.cat([read.index_B for read in fine])
        values_BF = torch.cat([read.images_BCHW.flatten(1) for read in fine]).float()
        odds_BK = instance_odds(values_BF, weights_FK, k, own_rate_N[index_B])
        noisy_N[index_B] = torch.multinomial(odds_BK, 1, generator=generator).squeeze(1)
    return noisy_N


def instance_odds(values_BF: Tensor, weights_FK: Tensor, own: int, rate_B: Tensor) -> Tensor:
    """The odds of each label for samples of the class `own`, each with its own rate of being wrong."""
    scores_BK = values_BF @ weights_FK
    scores_BK[:, own] = -torch.inf
    odds_BK = scores_BK.softmax(1) * rate_B.unsqueeze(1)
    odds_BK[:, own] = 1 - rate_B
    return odds_BK


def truncated_normal(mean: float, deviation: float, count: int, generator: torch.Generator) -> Tensor:
    """Draws from a normal distribution, of which what lies outside of 0..1 is cut off."""
    ends = (torch.tensor([0.0, 1.0], dtype=torch.float64) - mean) / deviation
    low, high = torch.special.ndtr(ends).tolist()
    share_N = low + (high - low) * torch.rand(count, generator=generator, dtype=torch.float64)
    drawn_N: Tensor = torch.special.ndtri(share_N)
    return (mean + deviation * drawn_N).clamp(0, 1).float()


@dataclass(frozen=True)
class ImageNoise:
    """What a kind of noise makes of an image. It depends on the image's id and the seed alone."""

    kind: str
    statistics: tuple[Tensor, Tensor]  # mean and standard deviation of each channel, on the scale 0..1
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
    """The samples with noise in the images that are corrupted. How depends on an image's id and the seed."""
    noise = ImageNoise(kind, statistics, seed)
    if isinstance(samples.inputs, ImageFiles):
        files = CorruptedImages(samples.inputs, noise, corrupted_N, samples.ids)
        return replace(samples, inputs=files, clean_inputs=samples.inputs, corrupted=corrupted_N)
    values_NCHW = samples.inputs.read(torch.arange(len(samples)))  # a copy
    for i in corrupted_N.nonzero().flatten().tolist():
        values_NCHW[i] = noise.corrupted(values_NCHW[i], samples.ids[i])
    return replace(samples, inputs=TensorImages(values_NCHW), clean_inputs=samples.inputs, corrupted=corrupted_N)


@dataclass(frozen=True)
class CorruptedImages:
    """Image files some of which are corrupted once they are decoded."""

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


def actual_rate(samples: Samples) -> float | None:
    """The share of samples that noise changed, where that is known: images, or labels that are not the truth."""
    if samples.corrupted is not None:
        return samples.corrupted.double().mean().item()
    return None if samples.truth is None else (samples.labels != samples.truth).double().mean().item()
