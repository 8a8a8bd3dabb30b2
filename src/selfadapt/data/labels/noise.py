"""Seeded label noise, for experiments in which the true labels are known.

Each kind corrupts a sample with probability `rate`. Kinds that corrupt images are in image_noise.py.

Shapes: B samples of a batch, N samples, K classes, F values of an input.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from selfadapt.core.array_files import read_array
from selfadapt.core.errors import UserError
from selfadapt.core.regular_files import check_regular
from selfadapt.core.rng import seeded
from selfadapt.data.dataset import Data, Samples
from selfadapt.data.images.prefetch import read_batches
from selfadapt.data.input_statistics import channel_statistics
from selfadapt.data.labels.image_noise import corrupt_images

LabelKind = Literal["symmetric", "symmetric-other", "asymmetric", "instance", "matrix"]
ImageKind = Literal["gaussian", "random-pixels", "shuffled-pixels"]
KINDS = (*get_args(LabelKind), *get_args(ImageKind))

_READ_AT_ONCE = 64  # images; many such batches are in memory while files are decoded

# The paper's rules for CIFAR10 (Section 4.2). For other data, each class becomes the next one.
CIFAR10_FLIPS = {"truck": "automobile", "bird": "airplane", "deer": "horse", "cat": "dog", "dog": "cat"}


@dataclass(frozen=True, kw_only=True)
class Noise:
    """A kind of noise and the probability with which it corrupts a sample."""

    kind: str
    rate: float
    file: Path | None = None  # transition matrix, for kind matrix

    @classmethod
    def parse(cls, text: str) -> "Noise":
        """Parse KIND:RATE, such as symmetric:0.4, or matrix:FILE."""
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
                f"--noise {text!r} is neither KIND:RATE, with KIND one of {kinds} and RATE in 0..1, nor matrix:FILE"
            )
        return cls(kind=kind, rate=rate)

    def __str__(self) -> str:
        return f"{self.kind}:{self.rate:g}" if self.file is None else f"{self.kind}:{self.file}"

    def resolved(self) -> "Noise":
        """Return the same noise with an absolute path."""
        return self if self.file is None else replace(self, file=self.file.resolve())

    @property
    def of_images(self) -> bool:
        return self.kind in get_args(ImageKind)


def corrupt(data: Data, noise: Noise, seed: int) -> Data:
    """Return the data with noise in the training and validation splits; test data stay clean."""
    if noise.of_images and data.train.inputs.kind != "images":
        raise UserError(
            f"--noise {noise} is for images, but {data.name} contains vectors; choose a kind of label noise"
        )
    statistics = channel_statistics(data.train.inputs) if noise.of_images else None

    def corrupt_split(split: str, samples: Samples) -> Samples:
        generator = seeded(seed, "noise", split)
        if statistics is None:
            return samples.with_labels(noisy_labels(noise, data, samples, generator, seed))
        corrupted_N = torch.rand(len(samples), generator=generator) < noise.rate
        return corrupt_images(samples, noise.kind, corrupted_N, statistics, seed)

    noisy = {name: corrupt_split(name, samples) for name, samples in data.splits.items() if name != "test"}
    return data.with_splits(data.splits | noisy)


def noisy_labels(noise: Noise, data: Data, samples: Samples, generator: torch.Generator, seed: int) -> Tensor:
    """Draw noisy labels for the samples."""
    labels_N, num_classes = samples.labels, data.num_classes
    corrupted_N = torch.rand(len(labels_N), generator=generator) < noise.rate
    if noise.kind == "instance":
        return _instance_dependent(noise.rate, samples, num_classes, generator, seed)
    if noise.file is not None:
        matrix_KK = transition_matrix(noise.file, num_classes)
        drawn_N = torch.multinomial(matrix_KK[labels_N], 1, generator=generator).squeeze(1)
    elif noise.kind == "symmetric":  # drawn over all classes, including the true one
        drawn_N = torch.randint(num_classes, labels_N.shape, generator=generator)
    elif noise.kind == "symmetric-other":
        drawn_N = (labels_N + torch.randint(1, num_classes, labels_N.shape, generator=generator)) % num_classes
    else:
        drawn_N = flips(data.classes)[labels_N]
    return torch.where(corrupted_N, drawn_N, labels_N)


def flips(classes: Sequence[str]) -> Tensor:
    """Return the class that each class is mistaken for: a similar one for CIFAR10, otherwise the next one (cyclic)."""
    index = {name: k for k, name in enumerate(classes)}
    if {*CIFAR10_FLIPS, *CIFAR10_FLIPS.values()} <= set(classes):
        return torch.tensor([index[CIFAR10_FLIPS.get(name, name)] for name in classes])
    return (torch.arange(len(classes)) + 1) % len(classes)


def transition_matrix(path: Path, num_classes: int) -> Tensor:
    """Read a matrix of P(given label | true label) from .npy or .csv: K rows that sum to 1."""
    check_regular(path)
    try:
        loaded = read_array(path) if path.suffix == ".npy" else np.loadtxt(path, delimiter=",", ndmin=2)
        matrix = np.asarray(loaded, np.float64)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"the transition matrix {path} cannot be read: {error}") from error
    if matrix.shape != (num_classes, num_classes):
        raise UserError(
            f"the transition matrix {path} has shape {matrix.shape}, but the data have {num_classes} classes; "
            f"give {num_classes} rows of {num_classes} probabilities"
        )
    wrong = np.flatnonzero(~((matrix >= 0).all(1) & (np.abs(matrix.sum(1) - 1) < 1e-6)))
    if wrong.size:
        raise UserError(f"the transition matrix {path}: row {wrong[0]} must contain numbers from 0 on that sum to 1")
    return torch.from_numpy(matrix)


def _instance_dependent(
    rate: float, samples: Samples, num_classes: int, generator: torch.Generator, seed: int
) -> Tensor:
    """Draw instance-dependent noise (Xia et al., "Part-dependent Label Noise", 2020, Algorithm 2, and their program).

        q_i ~ N(rate, 0.1^2) truncated to 0..1,    W_k: standard normal weights for each class k
        P(label j | input i of class k) = q_i softmax_j(x_i W_k) over the other classes,    1 - q_i for j = k

    x are the raw values, for images 0..255 without scaling; so one other class has nearly all of the probability, and
    which one depends on the image. Near 0 and 1 the mean of q differs from the rate; a rate of 0 means no noise.
    """
    if rate == 0:
        return samples.labels
    rate_N = truncated_normal(rate, 0.1, len(samples), generator)
    noisy_N = samples.labels.clone()
    by_class = [(k, (samples.labels == k).nonzero().flatten()) for k in range(num_classes)]
    batches = [(k, index_B) for k, members in by_class for index_B in members.split(512) if len(index_B)]
    chunks = [index_B.split(_READ_AT_ONCE) for _, index_B in batches]
    reads = read_batches(samples.inputs, [index_b for of_batch in chunks for index_b in of_batch])
    last, weights_FK = -1, torch.empty(0)
    for (k, _), of_batch in zip(batches, chunks, strict=True):
        readable = [read for read in islice(reads, len(of_batch)) if len(read.index_B)]
        if not readable:  # unreadable files keep their label
            continue
        if k != last:
            last = k
            weights_FK = torch.randn(
                math.prod(samples.inputs.shape), num_classes, generator=seeded(seed, "instance", k)
            )
        index_B = torch.cat([read.index_B for read in readable])
        values_BF = torch.cat([read.images_BCHW.flatten(1) for read in readable]).float()
        probabilities_BK = instance_probabilities(values_BF, weights_FK, k, rate_N[index_B])
        noisy_N[index_B] = torch.multinomial(probabilities_BK, 1, generator=generator).squeeze(1)
    return noisy_N


def instance_probabilities(values_BF: Tensor, weights_FK: Tensor, true_class: int, rate_B: Tensor) -> Tensor:
    """Return the probability of each label for samples of one class, each with its own noise rate."""
    scores_BK = values_BF @ weights_FK
    scores_BK[:, true_class] = -torch.inf
    probabilities_BK = scores_BK.softmax(1) * rate_B.unsqueeze(1)
    probabilities_BK[:, true_class] = 1 - rate_B
    return probabilities_BK


def truncated_normal(mean: float, deviation: float, count: int, generator: torch.Generator) -> Tensor:
    """Draw from a normal distribution truncated to 0..1."""
    ends = (torch.tensor([0.0, 1.0], dtype=torch.float64) - mean) / deviation
    low, high = torch.special.ndtr(ends).tolist()
    quantile_N = low + (high - low) * torch.rand(count, generator=generator, dtype=torch.float64)
    drawn_N: Tensor = torch.special.ndtri(quantile_N)
    return (mean + deviation * drawn_N).clamp(0, 1).float()


def actual_rate(samples: Samples) -> float | None:
    """Return the share of samples that noise changed (their image, or their label), if that is known."""
    if samples.corrupted is not None:
        return samples.corrupted.double().mean().item()
    return None if samples.truth is None else (samples.labels != samples.truth).double().mean().item()
