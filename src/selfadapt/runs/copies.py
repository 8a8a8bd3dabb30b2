"""Copies of one sample in the data of a run: found once, kept in duplicates.csv, never parted by a split or fold."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from selfadapt.data.duplicates import find_duplicates, group_numbers, joined_groups
from selfadapt.data.images import Frame, ImageFiles, UnreadableImage
from selfadapt.data.inputs import Inputs
from selfadapt.data.samples import Data

_THUMBNAIL = Frame(size=32, squash=True)  # of a picture, to tell whether two are the same


def with_duplicates(data: Data) -> Data:
    """The data with their copies known, over all parts; samples that belong together share a group."""
    parts = list(data.parts.values())
    vectors_ND = torch.cat([samples.inputs.read(torch.arange(len(samples))) for samples in parts])
    ids = [sample_id for samples in parts for sample_id in samples.ids]
    pictures = [samples.pictures for samples in parts]
    read_pixels = None if None in pictures else _PicturesOf([own for own in pictures if own is not None])
    found = find_duplicates(vectors_ND, read_pixels=read_pixels)
    _warn_of_leaks(data, ids, found)
    warn_of_shared_groups(data)
    grouped = _grouped(data, found)
    return replace(grouped, duplicates=[[ids[place] for place in group] for group in found])


def with_known_duplicates(data: Data, duplicates: Sequence[Sequence[str]]) -> Data:
    """The data with copies that were found before, by their ids: grouped as they were then."""
    ids = [sample_id for samples in data.parts.values() for sample_id in samples.ids]
    return replace(_grouped(data, places_of(ids, duplicates)), duplicates=duplicates)


def _grouped(data: Data, found: Sequence[Sequence[int]]) -> Data:
    """The data with a group for each sample, which it shares with its copies and with what it belongs to."""
    parts = list(data.parts.values())
    groups_N = group_numbers(found, sum(map(len, parts)))
    given = [group for samples in parts for group in (samples.groups or [])]
    if given:
        codes_N = torch.from_numpy(np.unique(np.array(given), return_inverse=True)[1])
        groups_N = joined_groups(groups_N, codes_N)
    named, begin = {}, 0
    for name, samples in data.parts.items():
        own = groups_N[begin : begin + len(samples)].tolist()
        named[name], begin = replace(samples, groups=[str(group) for group in own]), begin + len(samples)
    return data.with_parts(named)


def _warn_of_leaks(data: Data, ids: Sequence[str], found: Sequence[Sequence[int]]) -> None:
    """A picture that is trained on and tested with flatters the accuracy."""
    begin = len(data.train)
    for part, samples in list(data.parts.items())[1:]:  # the training samples come first
        own = range(begin, begin + len(samples))
        leaks = [
            (min(group), place) for group in found for place in group if place in own and min(group) < len(data.train)
        ]
        if leaks:
            first, second = (ids[place] for place in leaks[0])
            warnings.warn(
                f"samples of the {part} part that are in the training part too: {len(leaks)}, first {second} as "
                f"{first}; accuracy on them flatters. duplicates.csv lists all",
                stacklevel=2,
            )
        begin += len(samples)


def warn_of_shared_groups(data: Data) -> None:
    """Samples of a group that is trained on flatter the accuracy, too."""
    trained_on = set(data.train.groups or ())
    for part, samples in list(data.parts.items())[1:]:
        shared = trained_on.intersection(samples.groups or ())
        if shared:
            warnings.warn(
                f"groups that are in both the training and the {part} part: {len(shared)}, such as {min(shared)}; "
                "accuracy on them flatters",
                stacklevel=2,
            )


class _PicturesOf:
    """The pictures of all parts, one after the other, as small as telling them apart allows."""

    def __init__(self, parts: Sequence[Inputs]) -> None:
        self.parts = [
            replace(own, shape=(own.shape[0], _THUMBNAIL.size, _THUMBNAIL.size), resize=_THUMBNAIL)
            if isinstance(own, ImageFiles)
            else own
            for own in parts
        ]

    def __call__(self, place: int) -> "np.ndarray[tuple[int, ...], np.dtype[Any]]":
        for own in self.parts:
            if place < len(own):
                try:
                    pixels = own.decode(place) if isinstance(own, ImageFiles) else own.read(torch.tensor([place]))[0]
                except UnreadableImage:  # it broke after its features were taken
                    pixels = torch.zeros(own.shape, dtype=torch.uint8)
                return pixels.permute(1, 2, 0).numpy()
            place -= len(own)
        raise IndexError(place)


def places_of(ids: Sequence[str], groups: Sequence[Sequence[str]]) -> list[list[int]]:
    """The groups by the positions of their ids; those of which at least two are there."""
    place = {sample_id: position for position, sample_id in enumerate(ids)}
    found = [[place[sample_id] for sample_id in group if sample_id in place] for group in groups]
    return [group for group in found if len(group) > 1]
