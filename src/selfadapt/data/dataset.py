"""What a data set is to the rest of the program.

Shapes: N samples, C channels, H by W pixels.
"""

import hashlib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from selfadapt.core.errors import UserError
from selfadapt.core.rng import seeded
from selfadapt.data.duplicates.groups import DuplicateGroup
from selfadapt.data.images.augment import AugmentName
from selfadapt.data.images.prefetch import read_batches
from selfadapt.data.images.storage import FileImages, ImageFiles, TensorImages
from selfadapt.data.inputs import Inputs
from selfadapt.data.tabular.row_encoder import RowEncoder

_ONE_UNIT = 30.0  # by which the deviations of values of one unit may exceed their median
VALIDATION_FRACTION = 0.1  # what is set aside where the data bring no validation part of their own


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Inputs with the labels that training may see, and the truth where it is known.

    Every sample has an id that stays the same when files are added, removed or put in another order.
    """

    inputs: Inputs
    labels: Tensor  # N, int64
    truth: Tensor | None
    ids: Sequence[str]
    paths: Sequence[str] | None = None
    pictures: Inputs | None = None  # what a person sees of them, where the inputs are features
    groups: Sequence[str] | None = None  # which of them belong together, such as those of one patient
    clean_inputs: Inputs | None = None  # as they were, where the images were corrupted
    corrupted: Tensor | None = None  # which images were corrupted

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> "Samples":
        """These samples only, in this order."""
        chosen = index.tolist()
        return Samples(
            inputs=self.inputs.take(index),
            labels=self.labels[index],
            truth=None if self.truth is None else self.truth[index],
            ids=[self.ids[i] for i in chosen],
            paths=None if self.paths is None else [self.paths[i] for i in chosen],
            pictures=None if self.pictures is None else self.pictures.take(index),
            groups=None if self.groups is None else [self.groups[i] for i in chosen],
            clean_inputs=None if self.clean_inputs is None else self.clean_inputs.take(index),
            corrupted=None if self.corrupted is None else self.corrupted[index],
        )

    def first(self, number: int) -> "Samples":
        """The first so many."""
        return self.take(torch.arange(min(number, len(self))))

    def share(self, number: int, generator: torch.Generator) -> "Samples":
        """So many, drawn so that each class keeps its share and, if there are enough, has one at least."""
        rank_N = torch.empty(len(self), dtype=torch.float64)  # of each sample in its class, from 0 to below 1
        for label in self.labels.unique():
            members = (self.labels == label).nonzero().flatten()
            order = torch.randperm(len(members), generator=generator)
            rank_N[members[order]] = torch.arange(len(members)).double() / len(members)
        return self.take(rank_N.argsort(stable=True)[:number].sort().values)

    @property
    def broken(self) -> dict[str, str]:
        """Those whose files could not be read when somebody tried, and why."""
        if not isinstance(self.inputs, FileImages):
            return {}
        files = self.inputs.files
        if not files.broken:
            return {}
        pairs = zip(self.ids, files.paths, strict=True)
        return {sample_id: files.broken[path] for sample_id, path in pairs if path in files.broken}

    def note_broken(self, found: Mapping[str, str]) -> None:
        """Take note of what others could not read, by id."""
        if found and isinstance(self.inputs, FileImages):
            files = self.inputs.files
            pairs = zip(self.ids, files.paths, strict=True)
            files.broken.update((path, found[sample_id]) for sample_id, path in pairs if sample_id in found)

    def relabelled(self, labels: Tensor) -> "Samples":
        """The same samples under other labels; the labels they had count as the truth."""
        return replace(self, labels=labels, truth=self.labels if self.truth is None else self.truth)


@dataclass(frozen=True, kw_only=True)
class Data:
    """A named set with its classes and its splits."""

    name: str
    classes: tuple[str, ...]
    train: Samples
    validation: Samples | None
    test: Samples | None
    unlabelled: Inputs | None = None
    augment: AugmentName = "crop"  # what suits the images
    validation_last: bool = False  # the last training samples are for validation, as a paper says
    unreadable: Sequence[tuple[str, str]] = ()  # files that were skipped, and why
    white: float | None = None  # the value that became 255 in images of over 8 bits, if there are any
    mixed: bool = False  # the order mixes the classes, so that the first so many are a fair share
    reader: RowEncoder | None = None  # what made vectors of raw rows, if anything did
    duplicates: Sequence[DuplicateGroup[str]] = ()  # by id
    image_size: int | None = None  # to which images of many sizes were brought, if nobody said

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
            digest.update(part.inputs.signature())
            digest.update(labels.contiguous().numpy().data)
            digest.update("\n".join(part.ids).encode())
        return digest.hexdigest()

    def with_validation(self, fraction: float, generator: torch.Generator) -> "Data":
        """The data with a validation part: their own, the one a paper names, or a share of each class."""
        if self.validation is not None or not fraction:
            return self
        if self.validation_last:
            count = len(self.train)
            kept, held_out = torch.arange(count).tensor_split([count - round(fraction * count)])
            return replace(self, train=self.train.take(kept), validation=self.train.take(held_out))
        train, validation = split_off(self.train, fraction, generator)
        return replace(self, train=train, validation=validation)

    def holding_out(self, ids: Container[str]) -> "Data":
        """The data with these training samples as the validation part."""
        chosen = torch.tensor([sample_id in ids for sample_id in self.train.ids])
        kept, held_out = (flags.nonzero().flatten() for flags in (~chosen, chosen))
        return replace(self, train=self.train.take(kept), validation=self.train.take(held_out))

    @property
    def splits(self) -> dict[str, Samples]:
        """The splits that exist, by name."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: samples for name, samples in splits.items() if samples is not None}

    def with_splits(self, splits: Mapping[str, Samples]) -> "Data":
        """The data with these splits, by name, and no others."""
        return replace(self, train=splits["train"], validation=splits.get("validation"), test=splits.get("test"))

    def with_files(self, changed: Callable[[ImageFiles], ImageFiles]) -> "Data":
        """The data with their image files read in another way; inputs that are no files stay."""
        return self._with_inputs(lambda inputs: changed(inputs) if isinstance(inputs, ImageFiles) else inputs)

    def with_images(self, changed: Callable[[TensorImages], TensorImages]) -> "Data":
        """The data with other images in place of those in memory; inputs that are not in memory stay."""
        return self._with_inputs(lambda inputs: changed(inputs) if isinstance(inputs, TensorImages) else inputs)

    def _with_inputs(self, changed: Callable[[Inputs], Inputs]) -> "Data":
        splits = {name: replace(samples, inputs=changed(samples.inputs)) for name, samples in self.splits.items()}
        unlabelled = None if self.unlabelled is None else changed(self.unlabelled)
        return replace(self.with_splits(splits), unlabelled=unlabelled)

    def limited(self, train: int | None, test: int | None, seed: int = 0) -> "Data":
        """So many samples only; None keeps all. Validation shrinks in proportion to training.

        They are the first where the order mixes the classes, and else a share of each class that the seed decides.
        """
        wanted = {"train": train, "test": test}
        if self.validation is not None and train is not None:
            share = train / max(train, len(self.train))
            wanted["validation"] = max(1, round(len(self.validation) * share))

        def limited(name: str, samples: Samples) -> Samples:
            number = wanted.get(name)
            if number is None:
                return samples
            return samples.first(number) if self.mixed else samples.share(number, seeded(seed, "limit", name))

        fewer = {name: limited(name, samples) for name, samples in self.splits.items()}
        return self.with_splits(fewer)

    @property
    def broken(self) -> dict[str, str]:
        """The samples of any part whose files could not be read when somebody tried, and why."""
        return {sample_id: reason for samples in self.splits.values() for sample_id, reason in samples.broken.items()}

    def note_broken(self, found: Mapping[str, str]) -> None:
        """Take note of what others could not read, by id; a class must not vanish by it."""
        for samples in self.splits.values():
            samples.note_broken(found)
        check_classes(self, self.train, self.train.broken)


def check_classes(data: Data, samples: Samples, broken: Mapping[str, str]) -> None:
    """Refuse to go on if all files of a class are broken."""
    if not broken:
        return
    broken_N = torch.tensor([sample_id in broken for sample_id in samples.ids])
    given_K, broken_K = (
        torch.bincount(labels, minlength=data.num_classes) for labels in (samples.labels, samples.labels[broken_N])
    )
    vanished = ((given_K > 0) & (given_K == broken_K)).nonzero().flatten().tolist()
    if vanished:
        members = (samples.labels == vanished[0]).nonzero().flatten()
        sample_id = samples.ids[int(members[0])]
        raise UserError(
            f"{data.name}: none of the {len(members)} training files of the class {data.classes[vanished[0]]!r} can be "
            f"read, such as {sample_id}: {broken[sample_id]}; mend them, or take the class away"
        )


def readable(data: Data, samples: Samples, broken: Mapping[int, str]) -> Tensor:
    """The positions of the samples of a part that are not broken. Neither the part nor a class may vanish."""
    found = {samples.ids[position]: reason for position, reason in broken.items()}
    if samples is data.train:
        check_classes(data, samples, found)
    if len(broken) == len(samples):
        sample_id, reason = next(iter(found.items()))
        raise UserError(f"{data.name}: no image of a whole part can be read, such as {sample_id}: {reason}")
    return torch.tensor([i for i in range(len(samples)) if i not in broken], dtype=torch.int64)


def channel_statistics(inputs: Inputs, most: int = 10_000) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel of images on the scale 0..1, or of each value of vectors.

    They come from `most` inputs spread over the set.
    """
    chosen = _spread_over(inputs, most)
    if len(inputs.shape) == 1:
        values_nD = inputs.read(chosen).double()
        return values_nD.mean(0).float(), deviations(values_nD).float()
    images = inputs
    # Whole numbers are summed, so the result does not depend on how the images come in batches.
    total_C = torch.zeros(images.shape[0], dtype=torch.int64)
    square_C, pixels = total_C.clone(), 0
    for read in read_batches(images, chosen.split(64)):
        if len(read.index_B):
            values = read.images_BCHW.long()
            total_C += values.sum((0, 2, 3))
            square_C += values.square().sum((0, 2, 3))
            pixels += values[:, 0].numel()
    if not pixels:
        raise UserError("none of the images can be read; are the data still there?")
    mean_C = total_C.double() / pixels
    std_C = (square_C.double() / pixels - mean_C.square()).clamp_min(0).sqrt()
    return (mean_C / 255).float(), (std_C / 255).clamp_min(1e-3).float()  # a constant channel must not divide by zero


def examples(images: Inputs, most: int) -> Tensor:
    """So many images spread over the set, on the scale 0..1; files that cannot be read are left out."""
    reads = [read.images_BCHW for read in read_batches(images, _spread_over(images, most).split(64))]
    return torch.cat([own for own in reads if len(own)]).float() / 255


def _spread_over(inputs: Inputs, most: int) -> Tensor:
    return torch.linspace(0, len(inputs) - 1, min(most, len(inputs))).round().long()


def deviations(values_nD: Tensor) -> Tensor:
    """What to divide vectors by: one number where their values share a unit, as features do, else each its own.

    A feature that hardly ever stirs is then not blown up. A value that never changes has no deviation; it counts as 1.
    """
    own_D = values_nD.std(0, correction=0)
    stirring = own_D > 1e-6 * values_nD.abs().amax(0)
    if not stirring.any():
        return torch.ones_like(own_D)
    if own_D.max() <= _ONE_UNIT * own_D[stirring].median():
        return own_D.square().mean().sqrt().expand_as(own_D)
    return torch.where(stirring, own_D, 1.0)


def split_off(
    samples: Samples, fraction: float, generator: torch.Generator, *, fewest: int = 0
) -> tuple[Samples, Samples]:
    """Part the samples at random so that each class keeps its share: (the rest, the fraction).

    A class gives `fewest` samples at least, if it has them. Samples of a group stay together.
    """
    heads = _first_of_each_group(samples)
    labels_n, chosen = samples.labels[heads], []
    for label in labels_n.unique():
        members = heads[labels_n == label]
        shuffled = members[torch.randperm(len(members), generator=generator)]
        chosen.append(shuffled[: max(fewest, round(fraction * len(members)))])
    held_out = _whole_groups(samples, torch.cat(chosen)).sort().values
    if samples.groups is not None and not fewest:  # else it is the fraction that must have every class
        held_out = _without_whole_classes(samples, held_out)
    kept = torch.ones(len(samples), dtype=torch.bool)
    kept[held_out] = False
    if not len(held_out) or not kept.any():
        together = samples.groups is not None and len(set(samples.groups)) < len(samples)
        raise UserError(
            f"{len(samples)} samples{', of which groups stay together,' if together else ''} are too few to set "
            f"{fraction:.0%} of each class aside; "
            "add samples, give a validation part, or do without one (--validation 0)"
        )
    return samples.take(kept.nonzero().flatten()), samples.take(held_out)


def _first_of_each_group(samples: Samples) -> Tensor:
    if samples.groups is None:
        return torch.arange(len(samples))
    first = {group: place for place, group in reversed(list(enumerate(samples.groups)))}
    return torch.tensor(sorted(first.values()))


def _whole_groups(samples: Samples, chosen: Tensor) -> Tensor:
    """These samples with all others of their groups."""
    if samples.groups is None:
        return chosen
    wanted = {samples.groups[place] for place in chosen.tolist()}
    places = [place for place, group in enumerate(samples.groups) if group in wanted]
    return torch.tensor(places, dtype=torch.int64)


def _without_whole_classes(samples: Samples, held_out: Tensor) -> Tensor:
    """Those of them whose class has other samples left: a group may hold the whole of a class."""
    classes = int(samples.labels.max()) + 1
    given_K, gone_K = (torch.bincount(own, minlength=classes) for own in (samples.labels, samples.labels[held_out]))
    assert samples.groups is not None
    empty_K = given_K == gone_K
    kept = {samples.groups[place] for place in held_out.tolist() if empty_K[samples.labels[place]]}
    fine = [place for place in held_out.tolist() if samples.groups[place] not in kept]
    return torch.tensor(fine, dtype=torch.int64)
