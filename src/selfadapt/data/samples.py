"""What a data set is to the rest of the program.

Shapes: N samples, C channels, H by W pixels.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from selfadapt.data.augment import AugmentName
from selfadapt.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Images with the labels that training may see, and the truth where it is known."""

    images: Tensor  # N×C×H×W, uint8
    labels: Tensor  # N, int64
    truth: Tensor | None
    ids: Sequence[str]
    paths: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> "Samples":
        """These samples only, in this order."""
        chosen = index.tolist()
        return replace(
            self,
            images=self.images[index],
            labels=self.labels[index],
            truth=None if self.truth is None else self.truth[index],
            ids=[self.ids[i] for i in chosen],
            paths=None if self.paths is None else [self.paths[i] for i in chosen],
        )

    def relabelled(self, labels: Tensor) -> "Samples":
        """The same samples under other labels; the labels they had count as the truth."""
        return replace(self, labels=labels, truth=self.labels if self.truth is None else self.truth)


@dataclass(frozen=True, kw_only=True)
class Data:
    """A named set with its classes and its parts."""

    name: str
    classes: tuple[str, ...]
    train: Samples
    validation: Samples | None
    test: Samples | None
    augment: AugmentName = "crop"  # what suits the images

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all images, ids and true labels: the same data give the same one."""
        digest = hashlib.sha256(repr(self.classes).encode())
        for part in (self.train, self.validation, self.test):
            if part is None:
                digest.update(b"none")
                continue
            labels = part.labels if part.truth is None else part.truth
            digest.update(repr(tuple(part.images.shape)).encode())
            digest.update(part.images.contiguous().numpy().data)
            digest.update(labels.contiguous().numpy().data)
            digest.update("\n".join(part.ids).encode())
        return digest.hexdigest()

    def limited(self, train: int | None, test: int | None) -> "Data":
        """The first samples only; None keeps all."""
        return replace(
            self,
            train=_first(self.train, train),
            test=None if self.test is None else _first(self.test, test),
        )


def _first(samples: Samples, number: int | None) -> Samples:
    return samples if number is None else samples.take(torch.arange(min(number, len(samples))))


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel of N×C×H×W uint8 images, on the scale 0..1."""
    total, square = torch.zeros(images.shape[1]).double(), torch.zeros(images.shape[1]).double()
    for piece in images.split(4096):
        values = piece.double() / 255
        total += values.sum((0, 2, 3))
        square += values.square().sum((0, 2, 3))
    count = images.numel() / images.shape[1]
    mean = total / count
    std = (square / count - mean.square()).clamp_min(0).sqrt()
    return mean.float(), std.clamp_min(1e-3).float()  # a constant channel must not divide by zero


def split_off(samples: Samples, fraction: float, generator: torch.Generator) -> tuple[Samples, Samples]:
    """Part the samples at random so that each class keeps its share: (the rest, the fraction)."""
    chosen = []
    for label in samples.labels.unique():
        members = (samples.labels == label).nonzero().flatten()
        shuffled = members[torch.randperm(len(members), generator=generator)]
        chosen.append(shuffled[: round(fraction * len(members))])
    held_out = torch.cat(chosen).sort().values
    kept = torch.ones(len(samples), dtype=torch.bool)
    kept[held_out] = False
    if not len(held_out) or not kept.any():
        raise UserError(
            f"{len(samples)} samples are too few to set {fraction:.0%} of each class aside; "
            "add samples or give a validation part"
        )
    return samples.take(kept.nonzero().flatten()), samples.take(held_out)
