"""Duplicates in the data of a run: found once, listed in duplicates.csv, never separated by a split or fold."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from selfadapt.core.errors import UserError
from selfadapt.data.dataset import Data
from selfadapt.data.duplicates.groups import (
    DuplicateGroup,
    find_duplicates,
    group_numbers,
    joined_groups,
    separable_groups,
)
from selfadapt.data.images.decode import UnreadableImage, decode_within
from selfadapt.data.images.packed_files import image_bytes
from selfadapt.data.images.storage import ImageFiles
from selfadapt.data.inputs import Inputs


def with_duplicates(data: Data) -> Data:
    """Find duplicates over all splits; duplicates and samples that belong together share a group."""
    splits = list(data.splits.values())
    vectors_ND = torch.cat([samples.inputs.read(torch.arange(len(samples))) for samples in splits])
    images = [samples.display_images for samples in splits]
    if None in images:
        found = find_duplicates(vectors_ND)
    else:
        shown = _ImagesOf([own for own in images if own is not None])
        hashes = [shown.content_hash(place) for place in range(len(data.ids))]
        found = find_duplicates(vectors_ND, hashes=hashes, read_pixels=shown)
    _warn_of_leaks(data, [group.members for group in found])
    warn_of_shared_groups(data)
    ids = data.ids
    by_id = [DuplicateGroup(tuple(ids[place] for place in group.members), group.kind) for group in found]
    return replace(_grouped(data, found), duplicates=by_id)


def with_known_duplicates(data: Data, duplicates: Sequence[DuplicateGroup[str]]) -> Data:
    """Group the data by duplicates that were found before."""
    return replace(_grouped(data, places_of(data.ids, duplicates)), duplicates=duplicates)


def _grouped(data: Data, found: Sequence[DuplicateGroup[int]]) -> Data:
    """Give each sample a group, which it shares with its duplicates and with the samples it belongs to."""
    splits = list(data.splits.values())
    groups_N = group_numbers([group.members for group in found], sum(map(len, splits)))
    count = len(data.train)
    training = [[place for place in group.members if place < count] for group in found]
    parted_n = separable_groups(training, data.train.labels, data.classes) != group_numbers(training, count)
    groups_N[:count] = torch.where(parted_n, torch.arange(count), groups_N[:count])
    given = [group for samples in splits for group in (samples.groups or [])]
    if given:
        codes_N = torch.from_numpy(np.unique(np.array(given), return_inverse=True)[1])
        groups_N = joined_groups(groups_N, codes_N)
    of_splits = groups_N.split([len(samples) for samples in splits])
    return data.with_splits(
        {
            name: replace(samples, groups=[str(group) for group in own_n.tolist()])
            for (name, samples), own_n in zip(data.splits.items(), of_splits, strict=True)
        }
    )


def _warn_of_leaks(data: Data, found: Sequence[Sequence[int]]) -> None:
    """Warn of images that are in the training split and in another: leakage inflates the accuracy."""
    offset = len(data.train)
    for split, samples in list(data.splits.items())[1:]:  # the training samples come first
        own = range(offset, offset + len(samples))
        leaks = [
            (min(group), place) for group in found for place in group if place in own and min(group) < len(data.train)
        ]
        if leaks:
            first, second = (data.ids[place] for place in leaks[0])
            warnings.warn(
                f"samples of the {split} split that are also in the training split: {len(leaks)}, first {second} as "
                f"{first}; this leakage inflates the accuracy. duplicates.csv lists all",
                stacklevel=2,
            )
        offset += len(samples)


def warn_of_shared_groups(data: Data) -> None:
    """Warn of groups that are in the training split and in another, which inflate the accuracy, too."""
    trained_on = set(data.train.groups or ())
    for split, samples in list(data.splits.items())[1:]:
        shared = trained_on.intersection(samples.groups or ())
        if shared:
            warnings.warn(
                f"groups that are in both the training and the {split} split: {len(shared)}, such as {min(shared)}; "
                "this leakage inflates the accuracy",
                stacklevel=2,
            )


class _ImagesOf:
    """The images of all splits, one after the other."""

    def __init__(self, splits: Sequence[Inputs]) -> None:
        self.splits = splits

    def __call__(self, place: int, most: int) -> "np.ndarray[tuple[int, ...], np.dtype[Any]]":
        own, place = self._find(place)
        if not isinstance(own, ImageFiles):
            return own.read(torch.tensor([place]))[0].permute(1, 2, 0).numpy()
        try:
            pixels = decode_within(own.paths[place], most, channels=own.shape[0], white=own.white)
        except UnreadableImage:  # it broke after its features were computed
            pixels = torch.zeros(own.shape, dtype=torch.uint8)
        return pixels.permute(1, 2, 0).numpy()

    def content_hash(self, place: int) -> str:
        """A hash of the file, or of the pixels where there is none."""
        own, place = self._find(place)
        if not isinstance(own, ImageFiles):
            return blake2b(own.read(torch.tensor([place])).numpy().tobytes()).hexdigest()
        try:
            return blake2b(image_bytes(own.paths[place])).hexdigest()
        except (OSError, UserError):
            return f"unreadable {own.paths[place]}"

    def _find(self, place: int) -> tuple[Inputs, int]:
        for own in self.splits:
            if place < len(own):
                return own, place
            place -= len(own)
        raise IndexError(place)


def places_of(ids: Sequence[str], groups: Sequence[DuplicateGroup[str]]) -> list[DuplicateGroup[int]]:
    """The groups by the positions of their ids; groups with fewer than two members there are left out."""
    place = {sample_id: position for position, sample_id in enumerate(ids)}
    found = []
    for group in groups:
        members = tuple(sorted(place[sample_id] for sample_id in group.members if sample_id in place))
        if len(members) > 1:
            found.append(DuplicateGroup(members, group.kind))
    return found
