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
from selfadapt.data.images import Images, read_fine
from selfadapt.errors import UserError

VALIDATION_FRACTION = 0.1  # what is set aside where the data bring no validation part of their own


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Images with the labels that training may see, and the truth where it is known.

    Every sample has an id that stays the same when files are added, removed or put in another order.
    """

    images: Images
    labels: Tensor  # N, int64
    truth: Tensor | None
    ids: Sequence[str]
    paths: Sequence[str] | None = None
    clean_images: Images | None = None  # as they were, where the images were corrupted
    struck: Tensor | None = None  # which images were corrupted

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> "Samples":
        """These samples only, in this order."""
        chosen = index.tolist()
        return Samples(
            images=self.images.take(index),
            labels=self.labels[index],
            truth=None if self.truth is None else self.truth[index],
            ids=[self.ids[i] for i in chosen],
            paths=None if self.paths is None else [self.paths[i] for i in chosen],
            clean_images=None if self.clean_images is None else self.clean_images.take(index),
            struck=None if self.struck is None else self.struck[index],
        )

    def limited(self, number: int | None) -> "Samples":
        """The first so many; None keeps all."""
        return self if number is None else self.take(torch.arange(min(number, len(self))))

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
    unlabelled: Images | None = None
    augment: AugmentName = "crop"  # what suits the images
    validation_last: int = 0  # the last so many training samples are for validation, where a paper says so
    unreadable: Sequence[tuple[str, str]] = ()  # files that were skipped, and why

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
            digest.update(part.images.signature())
            digest.update(labels.contiguous().numpy().data)
            digest.update("\n".join(part.ids).encode())
        return digest.hexdigest()

    def with_validation(self, fraction: float, generator: torch.Generator) -> "Data":
        """The data with a validation part: their own, the one a paper names, or a share of each class."""
        if self.validation is not None or not fraction:
            return self
        if self.validation_last:
            kept, held_out = torch.arange(len(self.train)).tensor_split([len(self.train) - self.validation_last])
            return replace(self, train=self.train.take(kept), validation=self.train.take(held_out))
        train, validation = split_off(self.train, fraction, generator)
        return replace(self, train=train, validation=validation)

    def limited(self, train: int | None, test: int | None) -> "Data":
        """The first samples only; None keeps all. Validation shrinks in proportion to training."""
        validation = self.validation
        if validation is not None and train is not None:
            validation = validation.limited(max(1, round(len(validation) * train / max(train, len(self.train)))))
        return replace(
            self,
            train=self.train.limited(train),
            validation=validation,
            test=None if self.test is None else self.test.limited(test),
        )


def channel_statistics(images: Images, most: int = 10_000) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel on the scale 0..1, from `most` images spread over the set."""
    channels = images.shape[0]
    total, square = torch.zeros(channels).double(), torch.zeros(channels).double()
    pixels = 0
    chosen = torch.linspace(0, len(images) - 1, min(most, len(images))).round().long()
    for index_B in chosen.split(1024):
        values = read_fine(images, index_B).double() / 255
        total += values.sum((0, 2, 3))
        square += values.square().sum((0, 2, 3))
        pixels += values[:, 0].numel()
    if not pixels:
        raise UserError("none of the images can be read; are the data still there?")
    mean = total / pixels
    std = (square / pixels - mean.square()).clamp_min(0).sqrt()
    return mean.float(), std.clamp_min(1e-3).float()  # a constant channel must not divide by zero


def split_off(
    samples: Samples, fraction: float, generator: torch.Generator, *, fewest: int = 0
) -> tuple[Samples, Samples]:
    """Part the samples at random so that each class keeps its share: (the rest, the fraction).

    A class gives `fewest` samples at least, if it has them.
    """
    chosen = []
    for label in samples.labels.unique():
        members = (samples.labels == label).nonzero().flatten()
        shuffled = members[torch.randperm(len(members), generator=generator)]
        chosen.append(shuffled[: max(fewest, round(fraction * len(members)))])
    held_out = torch.cat(chosen).sort().values
    kept = torch.ones(len(samples), dtype=torch.bool)
    kept[held_out] = False
    if not len(held_out) or not kept.any():
        raise UserError(
            f"{len(samples)} samples are too few to set {fraction:.0%} of each class aside; "
            "add samples, give a validation part, or do without one (--validation 0)"
        )
    return samples.take(kept.nonzero().flatten()), samples.take(held_out)
