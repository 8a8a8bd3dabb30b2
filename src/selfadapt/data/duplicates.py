"""Duplicates: groups of samples that must stay on one side of every split.

There are three kinds. Samples of the same file have equal content. The same image was re-encoded, scaled or cropped. Of
the same scene large parts agree, but something was changed, such as a watermark or a moved object. The first two kinds
are evidence about labels, because there is one thing to label; the third is not.

Where pixels are available, they decide (near_duplicates.py): features of a strong network move more when an image is
saved again at half its size than two images of one class differ. Without pixels, samples are duplicates if their
features are equal, or, where features are many, if standardised ones point the same way (cosine above 0.95). A few
features are alike by chance too often. And where less than half of the rows are distinct, as in a table of a few
yes-or-no columns, equal rows are samples that are alike, not one sample that was duplicated.

A group forms around one member of which all others are duplicates: if A is like B and B like C, that says little about
A and C, and chains of such steps lead anywhere.

Shapes: N samples, F features, K classes.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from selfadapt.data.near_duplicates import Kind, Link, ReadPixels, near_duplicates

_SAME_FEATURES = 0.95
_MANY_FEATURES = 256
_LEAST_DISTINCT = 0.5  # of the rows, for equal ones to be duplicates of one sample
_ROWS = 256  # compared at a time
_CELLS = 2**24  # cosines that are held at once
_FEWEST_APART = 3  # samples, for folds

Neighbours = Callable[[int], set[int]]
Sample = TypeVar("Sample", int, str)


@dataclass(frozen=True)
class DuplicateGroup(Generic[Sample]):
    """Samples, by position or id, that are duplicates of one of them. `kind` is the weakest that occurs."""

    members: tuple[Sample, ...]
    kind: Kind

    @property
    def is_evidence(self) -> bool:
        """Whether all members should have one label."""
        return self.kind != "same scene"


def find_duplicates(
    features_NF: Tensor, *, hashes: Sequence[str] | None = None, read_pixels: ReadPixels | None = None
) -> list[DuplicateGroup[int]]:
    """The groups of duplicates, those that are evidence about labels first.

    `hashes` are of the samples' content. `read_pixels(sample, most)` gives one image, H×W×C of 0..255; sides that are
    longer than `most` pixels may be resized to that. A group of one scene includes all members of groups that it joins.
    """
    count = len(features_NF)
    if read_pixels is None:
        return _by_features(features_NF.float(), hashes)
    equal = _equal(hashes) if hashes is not None else {}
    repeated = {sample for members in equal.values() for sample in members[1:]}
    links = near_duplicates([sample for sample in range(count) if sample not in repeated], read_pixels)
    same = _evidence(links, equal)
    return same + _scenes(links, same)


def group_numbers(groups: Sequence[Sequence[int]], count: int) -> Tensor:
    """A number for each sample, equal for all that share a group."""
    return _joined([pair for members in groups for pair in pairwise(members)], count)


def joined_groups(first_N: Tensor, second_N: Tensor) -> Tensor:
    """Groups that hold together what either of two groupings does."""
    pairs = []
    for number_N in (first_N, second_N):
        order = number_N.argsort(stable=True).tolist()
        pairs += [(a, b) for a, b in pairwise(order) if number_N[a] == number_N[b]]
    return _joined(pairs, len(first_N))


def separable_groups(groups: Sequence[Sequence[int]], labels_N: Tensor, classes: Sequence[str]) -> Tensor:
    """A number for each sample as of `group_numbers`, by which samples can still be dealt into folds.

    Duplicates that are all there is of a class, or that leave fewer than three samples, are not kept together, with a
    warning.
    """
    count = len(labels_N)
    number_N = group_numbers(groups, count)
    if len(number_N.unique()) < _FEWEST_APART <= count:
        warnings.warn(
            f"without duplicates, {len(number_N.unique())} of {count} samples are left, too few for folds that keep "
            "duplicates together; accuracy and the list of label errors are too optimistic",
            stacklevel=2,
        )
        return torch.arange(count)
    single = single_image_classes(groups, labels_N, len(classes)).nonzero().flatten()
    if len(single):
        names = ", ".join(classes[label] for label in single.tolist())
        warnings.warn(
            f"all samples of a class are duplicates of one, so their labels are not judged: {names}; add other samples",
            stacklevel=2,
        )
        whole_N = torch.isin(number_N, number_N[torch.isin(labels_N, single)])
        number_N = torch.where(whole_N, torch.arange(count), number_N)
    return number_N


def single_image_classes(groups: Sequence[Sequence[int]], labels_N: Tensor, num_classes: int) -> Tensor:
    """For each class, whether it has several samples and all are duplicates of one."""
    number_N = group_numbers(groups, len(labels_N))
    pairs_n2 = torch.stack((labels_N, number_N), 1).unique(dim=0)
    distinct_K = torch.bincount(pairs_n2[:, 0], minlength=num_classes)
    return (distinct_K == 1) & (torch.bincount(labels_N, minlength=num_classes) > 1)


def _by_features(features_NF: Tensor, hashes: Sequence[str] | None) -> list[DuplicateGroup[int]]:
    if hashes is None:
        rows = (features_NF + 0.0).numpy()  # -0 becomes 0, which it equals
        hashes = [blake2b(row.tobytes()).hexdigest() for row in rows]
    equal = _equal(hashes)
    repeated = {sample for members in equal.values() for sample in members[1:]}
    if len(features_NF) - len(repeated) < _LEAST_DISTINCT * len(features_NF):
        return []
    links: list[Link] = []
    if features_NF.shape[1] >= _MANY_FEATURES:
        apart = [sample for sample in range(len(features_NF)) if sample not in repeated]
        links = [Link(apart[a], apart[b], "same image") for a, b in _same_direction(features_NF, torch.tensor(apart))]
    return _evidence(links, equal)


def _same_direction(features_NF: Tensor, apart_n: Tensor) -> Iterator[tuple[int, int]]:
    """Pairs, by their places in `apart_n`, whose standardised features point the same way and are about as long.

    Of each group, the pairs with its common member: all pairs would take memory that grows with their square.
    """
    scaled_nF = (features_NF - features_NF.mean(0)) / features_NF.std(0, correction=0).clamp_min(1e-6)
    scaled_nF = scaled_nF[apart_n]
    length_n = scaled_nF.norm(dim=1)
    unit_nF, log_n = normalize(scaled_nF) * (length_n > 1e-6).unsqueeze(1), length_n.clamp_min(1e-12).log()

    reach, by_length_n = 1 - _SAME_FEATURES + 1e-6, log_n.argsort()
    sorted_n = log_n[by_length_n]

    def alike(rows: Tensor) -> tuple[Tensor, Tensor]:
        """For rows in the order of length: which of those about as long point the same way, and who these are."""
        ends = torch.stack((log_n[rows[0]] - reach, log_n[rows[-1]] + reach))
        first, last = torch.searchsorted(sorted_n, ends).tolist()
        others = by_length_n[first:last]
        near = (log_n[rows].unsqueeze(1) - log_n[others]).abs() < reach
        return (unit_nF[rows] @ unit_nF[others].T >= _SAME_FEATURES) & near & (rows.unsqueeze(1) != others), others

    degree_n = torch.zeros_like(by_length_n)
    for rows in by_length_n.split(min(_ROWS, max(1, _CELLS // len(unit_nF)))):
        degree_n[rows] = alike(rows)[0].sum(1)

    def neighbours(place: int) -> set[int]:
        found, others = alike(torch.tensor([place]))
        return set(others[found[0]].tolist())

    for centre, others in _stars(dict(enumerate(degree_n.tolist())), neighbours):
        yield from ((centre, other) for other in others)


def _evidence(links: Sequence[Link], equal: dict[int, list[int]]) -> list[DuplicateGroup[int]]:
    """Groups of the same file or image; links are between the first samples of each content."""
    near: dict[int, set[int]] = {sample: set() for sample in equal}
    for first, second, kind in links:
        if kind != "same scene":
            near.setdefault(first, set()).add(second)
            near.setdefault(second, set()).add(first)
    found = []
    for centre, others in _stars({sample: len(own) for sample, own in near.items()}, near.__getitem__):
        images = [centre, *others]
        members = sorted(sample for image in images for sample in equal.get(image, [image]))
        found.append(DuplicateGroup(tuple(members), "same image" if others else "same file"))
    grouped = {sample for group in found for sample in group.members}
    found += [DuplicateGroup(tuple(own), "same file") for first, own in equal.items() if first not in grouped]
    return sorted(found, key=lambda group: group.members)


def _scenes(links: Sequence[Link], same: Sequence[DuplicateGroup[int]]) -> list[DuplicateGroup[int]]:
    """Groups of one scene, of samples and of whole groups of one image."""
    home = {sample: group.members for group in same for sample in group.members}
    near: dict[int, set[int]] = {}
    for first, second, kind in links:
        one, other = (home.get(sample, (sample,))[0] for sample in (first, second))
        if kind == "same scene" and one != other:
            near.setdefault(one, set()).add(other)
            near.setdefault(other, set()).add(one)
    found = []
    for centre, others in _stars({sample: len(own) for sample, own in near.items()}, near.__getitem__):
        members = sorted(sample for image in (centre, *others) for sample in home.get(image, (image,)))
        found.append(DuplicateGroup(tuple(members), "same scene"))
    return sorted(found, key=lambda group: group.members)


def _stars(degree: dict[int, int], neighbours: Neighbours) -> Iterator[tuple[int, list[int]]]:
    """Each centre with those of its neighbours that do not have one yet; those with most neighbours come first."""
    taken: set[int] = set()
    for centre in sorted((sample for sample in degree if degree[sample]), key=lambda own: (-degree[own], own)):
        if centre not in taken and (others := sorted(neighbours(centre) - taken)):
            taken.update((centre, *others))
            yield centre, others


def _equal(hashes: Sequence[str]) -> dict[int, list[int]]:
    """The samples of each hash that occurs several times, by the first of them."""
    members: dict[str, list[int]] = {}
    for sample, text in enumerate(hashes):
        members.setdefault(text, []).append(sample)
    return {own[0]: own for own in members.values() if len(own) > 1}


def _joined(pairs: Sequence[tuple[int, int]], count: int) -> Tensor:
    """A number for each sample: the first of those that pairs connect it with."""
    parent = list(range(count))

    def root(sample: int) -> int:
        while parent[sample] != sample:
            parent[sample] = parent[parent[sample]]
            sample = parent[sample]
        return sample

    for a, b in pairs:
        low, high = sorted((root(a), root(b)))
        parent[high] = low
    return torch.tensor([root(sample) for sample in range(count)])
