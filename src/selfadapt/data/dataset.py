"""Data sets: samples with labels and stable ids, and the splits they form.

Shapes: N samples, K classes.
"""

import hashlib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from selfadapt.core.errors import UserError
from selfadapt.core.rng import seeded
from selfadapt.data.duplicates.groups import DuplicateGroup
from selfadapt.data.images.augment import AugmentName
from selfadapt.data.images.storage import FileImages, ImageFiles, TensorImages
from selfadapt.data.inputs import Inputs
from selfadapt.data.splits import split_off
from selfadapt.data.tabular.row_encoder import RowEncoder


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Inputs with their labels, and the true labels where they are known.

    Each sample has an id that stays the same when files are added, removed or reordered.
    """

    inputs: Inputs
    labels: Tensor  # N, int64
    ids: Sequence[str]
    truth: Tensor | None = None
    paths: Sequence[str] | None = None
    display_images: Inputs | None = None  # the images to show to a person, if the inputs are features of them
    groups: Sequence[str] | None = None  # group of each sample, such as the patient of a photo
    clean_inputs: Inputs | None = None  # the images before image noise was added
    corrupted: Tensor | None = None  # N, bool: samples with image noise

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> "Samples":
        """Return the samples at these positions, in this order."""
        chosen = index.tolist()
        return Samples(
            inputs=self.inputs.take(index),
            labels=self.labels[index],
            truth=None if self.truth is None else self.truth[index],
            ids=[self.ids[i] for i in chosen],
            paths=None if self.paths is None else [self.paths[i] for i in chosen],
            display_images=None if self.display_images is None else self.display_images.take(index),
            groups=None if self.groups is None else [self.groups[i] for i in chosen],
            clean_inputs=None if self.clean_inputs is None else self.clean_inputs.take(index),
            corrupted=None if self.corrupted is None else self.corrupted[index],
        )

    def first(self, number: int) -> "Samples":
        """Return the first `number` samples, or all if there are fewer."""
        return self.take(torch.arange(min(number, len(self))))

    def share(self, number: int, generator: torch.Generator) -> "Samples":
        """Draw `number` samples in proportion to the class sizes, with at least one of each class where possible."""
        rank_N = torch.empty(len(self), dtype=torch.float64)  # rank of each sample in its class, scaled to [0, 1)
        for label in self.labels.unique():
            members = (self.labels == label).nonzero().flatten()
            order = torch.randperm(len(members), generator=generator)
            rank_N[members[order]] = torch.arange(len(members)).double() / len(members)
        return self.take(rank_N.argsort(stable=True)[:number].sort().values)

    def with_labels(self, labels: Tensor) -> "Samples":
        """Return the samples with other labels; the previous labels count as the truth if none is known."""
        return replace(self, labels=labels, truth=self.labels if self.truth is None else self.truth)

    @property
    def broken(self) -> dict[str, str]:
        """Ids of the samples whose files turned out unreadable, with the reason."""
        if not isinstance(self.inputs, FileImages) or not (broken := self.inputs.files.broken):
            return {}
        pairs = zip(self.ids, self.inputs.files.paths, strict=True)
        return {sample_id: broken[path] for sample_id, path in pairs if path in broken}

    def note_broken(self, found: Mapping[str, str]) -> None:
        """Record unreadable files that another process found, by sample id."""
        if found and isinstance(self.inputs, FileImages):
            files = self.inputs.files
            pairs = zip(self.ids, files.paths, strict=True)
            files.broken.update((path, found[sample_id]) for sample_id, path in pairs if sample_id in found)


@dataclass(frozen=True, kw_only=True)
class Data:
    """A data set with its classes and its splits."""

    name: str
    classes: tuple[str, ...]
    train: Samples
    validation: Samples | None = None
    test: Samples | None = None
    unlabelled: Inputs | None = None
    augment: AugmentName = "crop"  # the default augmentation for these images
    validation_last: bool = False  # the last training samples form the validation split, as in the paper (CIFAR)
    unreadable: Sequence[tuple[str, str]] = ()  # skipped files, with the reason
    white: float | None = None  # the pixel value that is mapped to 255, for images of more than 8 bits
    mixed: bool = False  # the samples are in random order, so that the first n are representative
    reader: RowEncoder | None = None  # the encoder of raw table rows, if there is one
    duplicates: Sequence[DuplicateGroup[str]] = ()  # by id
    image_size: int | None = None  # the size chosen for files of different sizes, if the user gave none

    @classmethod
    def of(cls, splits: Mapping[str, Samples], **fields: Any) -> "Data":
        """Create a data set from its splits, by name, and its other fields."""
        return cls(train=splits["train"], validation=splits.get("validation"), test=splits.get("test"), **fields)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def splits(self) -> dict[str, Samples]:
        """The splits that exist, by name."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: samples for name, samples in splits.items() if samples is not None}

    @property
    def ids(self) -> list[str]:
        """The ids of all splits, one split after the other."""
        return [sample_id for samples in self.splits.values() for sample_id in samples.ids]

    def with_splits(self, splits: Mapping[str, Samples]) -> "Data":
        """Return the data with exactly these splits, by name."""
        return replace(self, train=splits["train"], validation=splits.get("validation"), test=splits.get("test"))

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the classes and of the inputs, ids and labels (the true ones, if known) of each split."""
        digest = hashlib.sha256(repr(self.classes).encode())
        for samples in (self.train, self.validation, self.test):
            if samples is None:
                digest.update(b"none")
                continue
            labels = samples.labels if samples.truth is None else samples.truth
            digest.update(samples.inputs.signature())
            digest.update(labels.contiguous().numpy().data)
            digest.update("\n".join(samples.ids).encode())
        return digest.hexdigest()

    def with_validation(self, fraction: float, generator: torch.Generator) -> "Data":
        """Return the data with a validation split: the existing one, the last samples, or a share of each class."""
        if self.validation is not None or not fraction:
            return self
        if self.validation_last:
            count = len(self.train)
            kept, held_out = torch.arange(count).tensor_split([count - round(fraction * count)])
            return replace(self, train=self.train.take(kept), validation=self.train.take(held_out))
        train, validation = split_off(self.train, fraction, generator)
        return replace(self, train=train, validation=validation)

    def holding_out(self, ids: Container[str]) -> "Data":
        """Return the data with these training samples as the validation split."""
        chosen = torch.tensor([sample_id in ids for sample_id in self.train.ids])
        kept, held_out = (flags.nonzero().flatten() for flags in (~chosen, chosen))
        return replace(self, train=self.train.take(kept), validation=self.train.take(held_out))

    def with_files(self, change: Callable[[ImageFiles], ImageFiles]) -> "Data":
        """Return the data with all inputs that are image files changed; other inputs stay."""
        return self._with_inputs(lambda inputs: change(inputs) if isinstance(inputs, ImageFiles) else inputs)

    def with_images(self, change: Callable[[TensorImages], TensorImages]) -> "Data":
        """Return the data with all images in memory changed; other inputs stay."""
        return self._with_inputs(lambda inputs: change(inputs) if isinstance(inputs, TensorImages) else inputs)

    def _with_inputs(self, change: Callable[[Inputs], Inputs]) -> "Data":
        splits = {name: replace(samples, inputs=change(samples.inputs)) for name, samples in self.splits.items()}
        unlabelled = None if self.unlabelled is None else change(self.unlabelled)
        return replace(self.with_splits(splits), unlabelled=unlabelled)

    def limited(self, train: int | None, test: int | None, seed: int = 0) -> "Data":
        """Return at most this many samples of each split; None keeps all. Validation shrinks in proportion to training.

        The first samples are kept if the classes are in random order, otherwise a seeded share of each class.
        """
        wanted = {"train": train, "test": test}
        if self.validation is not None and train is not None:
            share = train / max(train, len(self.train))
            wanted["validation"] = max(1, round(len(self.validation) * share))

        def limit(name: str, samples: Samples) -> Samples:
            number = wanted.get(name)
            if number is None:
                return samples
            return samples.first(number) if self.mixed else samples.share(number, seeded(seed, "limit", name))

        return self.with_splits({name: limit(name, samples) for name, samples in self.splits.items()})

    @property
    def broken(self) -> dict[str, str]:
        """Ids of the samples of any split whose files turned out unreadable, with the reason."""
        return {sample_id: reason for samples in self.splits.values() for sample_id, reason in samples.broken.items()}

    def note_broken(self, found: Mapping[str, str]) -> None:
        """Record unreadable files that another process found; raise a UserError if all of a class are unreadable."""
        for samples in self.splits.values():
            samples.note_broken(found)
        _check_classes(self, self.train, self.train.broken)


def readable(data: Data, samples: Samples, broken: Mapping[int, str]) -> Tensor:
    """Return the positions of a split's readable samples.

    Raises:
        UserError: All samples of the split, or of a class of the training split, are unreadable.
    """
    found = {samples.ids[position]: reason for position, reason in broken.items()}
    if samples is data.train:
        _check_classes(data, samples, found)
    if len(broken) == len(samples):
        sample_id, reason = next(iter(found.items()))
        raise UserError(
            f"{data.name}: none of the {len(samples)} images of a split can be read, such as {sample_id}: {reason}; "
            "replace the files, or remove the split"
        )
    return torch.tensor([i for i in range(len(samples)) if i not in broken], dtype=torch.int64)


def _check_classes(data: Data, samples: Samples, broken: Mapping[str, str]) -> None:
    """Raise a UserError if all files of a class are unreadable."""
    if not broken:
        return
    broken_N = torch.tensor([sample_id in broken for sample_id in samples.ids])
    total_K, broken_K = (
        torch.bincount(labels, minlength=data.num_classes) for labels in (samples.labels, samples.labels[broken_N])
    )
    lost = ((total_K > 0) & (total_K == broken_K)).nonzero().flatten().tolist()
    if lost:
        members = (samples.labels == lost[0]).nonzero().flatten()
        sample_id = samples.ids[int(members[0])]
        raise UserError(
            f"{data.name}: none of the {len(members)} training files of the class {data.classes[lost[0]]!r} can be "
            f"read, such as {sample_id}: {broken[sample_id]}; replace the files, or remove the class"
        )
