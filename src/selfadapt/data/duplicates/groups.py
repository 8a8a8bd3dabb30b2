"""Groups of duplicates, which must stay on one side of every split.

    same file    equal content
    same image   re-encoded, scaled or cropped
    same scene   large parts agree, but something differs, such as a watermark or a moved object

The first two kinds are evidence about labels, because all members show the same thing; the third is not.

If pixels are available, they decide (near_duplicates.py), because re-encoding an image at half its size changes the
features of a strong network more than the difference between two images of one class. Without pixels, samples are
duplicates if their features are equal or, with many features, if the standardised features have a cosine similarity
above 0.95; with few features that happens too often by chance. If less than half of the rows are distinct, as in a
table of a few yes-or-no columns, equal rows are not duplicates.

A group consists of a centre and its duplicates. Similarity is not transitive, so groups are never extended by chains.

Shapes: N samples, n of them distinct, F features, K classes.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor
from torch.nn.functional import normalize

from selfadapt.data.duplicates.near_duplicates import Kind, Link, ReadPixels, near_duplicates

SAME_FEATURES = 0.95  # cosine similarity
MANY_FEATURES = 256
LEAST_DISTINCT = 0.5  # share of distinct rows, below which equal rows are not duplicates
_ROWS = 256  # compared at a time
_CELLS = 2**24  # similarities in memory at once
_FEWEST_GROUPS = 3  # needed for folds

Neighbours = Callable[[int], set[int]]
Sample = TypeVar("Sample", int, str)


@dataclass(frozen=True)
class DuplicateGroup(Generic[Sample]):
    """Samples, by position or id, that are duplicates of one of them; `kind` is the weakest kind among them."""

    members: tuple[Sample, ...]
    kind: Kind

    @property
    def is_evidence(self) -> bool:
        """Whether all members should have one label."""
        return self.kind != "same scene"


def find_duplicates(
    features_NF: Tensor, *, hashes: Sequence[str] | None = None, read_pixels: ReadPixels | None = None
) -> list[DuplicateGroup[int]]:
    """Find groups of duplicates, those that are evidence about labels first.

    Args:
        features_NF: Features of the samples, used without `read_pixels`.
        hashes: Hashes of the samples' content.
        read_pixels: Called with a sample and a size; returns the image as H×W×C in 0..255, whose sides may be resized
            to that size if they are longer.

    Returns:
        The groups. A group of the same scene includes all members of the groups that it joins.
    """
    count = len(features_NF)
    if read_pixels is None:
        return _by_features(features_NF.float(), hashes)
    equal = _equal(hashes) if hashes is not None else {}
    repeated = {sample for members in equal.values() for sample in members[1:]}
    links = near_duplicates([sample for sample in range(count) if sample not in repeated], read_pixels)
    same = groups_of_links(links, equal)
    return same + _scenes(links, same)


def group_numbers(groups: Sequence[Sequence[int]], count: int) -> Tensor:
    """Return a group number for each sample, equal for all members of a group."""
    return _components([pair for members in groups for pair in pairwise(members)], count)


def joined_groups(first_N: Tensor, second_N: Tensor) -> Tensor:
    """Merge two groupings: samples that share a group in either share one in the result."""
    pairs = []
    for number_N in (first_N, second_N):
        order_N = number_N.argsort(stable=True)
        neighbours_P2 = torch.stack((order_N[:-1], order_N[1:]), 1)
        pairs.append(neighbours_P2[number_N[order_N[:-1]] == number_N[order_N[1:]]])
    return _components(torch.cat(pairs), len(first_N))


def separable_groups(groups: Sequence[Sequence[int]], labels_N: Tensor, classes: Sequence[str]) -> Tensor:
    """Return group numbers as `group_numbers` does, but such that the samples can still be assigned to folds.

    Duplicates are not kept together, with a warning, if they form a whole class or if fewer than three groups remain.
    """
    count = len(labels_N)
    number_N = group_numbers(groups, count)
    if len(number_N.unique()) < _FEWEST_GROUPS <= count:
        warnings.warn(
            f"only {len(number_N.unique())} of {count} samples are distinct, too few for folds that keep duplicates "
            "together; leakage inflates the accuracy and hides label errors. Add other samples",
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
    """Return, for each class, whether it has several samples that are all duplicates of one."""
    number_N = group_numbers(groups, len(labels_N))
    pairs_n = (labels_N * len(labels_N) + number_N).unique()
    distinct_K = torch.bincount(pairs_n // len(labels_N), minlength=num_classes)
    return (distinct_K == 1) & (torch.bincount(labels_N, minlength=num_classes) > 1)


def _by_features(features_NF: Tensor, hashes: Sequence[str] | None) -> list[DuplicateGroup[int]]:
    if hashes is None:
        rows = (features_NF + 0.0).numpy()  # -0 becomes 0, which it equals
        hashes = [blake2b(row.tobytes()).hexdigest() for row in rows]
    equal = _equal(hashes)
    repeated = {sample for members in equal.values() for sample in members[1:]}
    if len(features_NF) - len(repeated) < LEAST_DISTINCT * len(features_NF):
        return []
    links: list[Link] = []
    if features_NF.shape[1] >= MANY_FEATURES:
        distinct = [sample for sample in range(len(features_NF)) if sample not in repeated]
        pairs = _same_direction(features_NF, torch.tensor(distinct))
        links = [Link(distinct[a], distinct[b], "same image") for a, b in pairs]
    return groups_of_links(links, equal)


def _same_direction(features_NF: Tensor, distinct_n: Tensor) -> Iterator[tuple[int, int]]:
    """Yield pairs of positions in `distinct_n` whose standardised features have nearly the same direction and length.

    Only pairs with the centre of a group are yielded: all pairs would take quadratic memory.
    """
    scaled_nF = (features_NF - features_NF.mean(0)) / features_NF.std(0, correction=0).clamp_min(1e-6)
    scaled_nF = scaled_nF[distinct_n]
    length_n = scaled_nF.norm(dim=1)
    unit_nF, log_n = normalize(scaled_nF) * (length_n > 1e-6).unsqueeze(1), length_n.clamp_min(1e-12).log()

    reach, by_length_n = 1 - SAME_FEATURES + 1e-6, log_n.argsort()
    sorted_n = log_n[by_length_n]

    def similar(rows: Tensor) -> tuple[Tensor, Tensor]:
        """For rows sorted by length, return a mask of similar samples, and the samples of about their length."""
        bounds = torch.stack((log_n[rows[0]] - reach, log_n[rows[-1]] + reach))
        first, last = torch.searchsorted(sorted_n, bounds).tolist()
        others = by_length_n[first:last]
        near = (log_n[rows].unsqueeze(1) - log_n[others]).abs() < reach
        return (unit_nF[rows] @ unit_nF[others].T >= SAME_FEATURES) & near & (rows.unsqueeze(1) != others), others

    degree_n = torch.zeros_like(by_length_n)
    for rows in by_length_n.split(min(_ROWS, max(1, _CELLS // len(unit_nF)))):
        degree_n[rows] = similar(rows)[0].sum(1)

    def neighbours(position: int) -> set[int]:
        found, others = similar(torch.tensor([position]))
        return set(others[found[0]].tolist())

    for centre, others in _stars(dict(enumerate(degree_n.tolist())), neighbours):
        yield from ((centre, other) for other in others)


def groups_of_links(links: Iterable[Link], equal: Mapping[int, Sequence[int]]) -> list[DuplicateGroup[int]]:
    """Form groups of the same file or image; links are between the first samples of each content."""
    groups = _around_centres([(a, b) for a, b, kind in links if kind != "same scene"], equal, "same image")
    grouped = {sample for group in groups for sample in group.members}
    groups += [DuplicateGroup(tuple(same), "same file") for first, same in equal.items() if first not in grouped]
    return sorted(groups, key=lambda group: group.members)


def _scenes(links: Sequence[Link], same: Sequence[DuplicateGroup[int]]) -> list[DuplicateGroup[int]]:
    """Form groups of the same scene, from samples and from whole groups of the same image."""
    members_of = {sample: group.members for group in same for sample in group.members}
    pairs = [(members_of.get(a, (a,))[0], members_of.get(b, (b,))[0]) for a, b, kind in links if kind == "same scene"]
    groups = _around_centres([(a, b) for a, b in pairs if a != b], members_of, "same scene")
    return sorted(groups, key=lambda group: group.members)


def _around_centres(
    pairs: Sequence[tuple[int, int]], members_of: Mapping[int, Sequence[int]], kind: Kind
) -> list[DuplicateGroup[int]]:
    """Form groups of linked samples, each with the members of its group, if it has one."""
    near: dict[int, set[int]] = defaultdict(set)
    for a, b in pairs:
        near[a].add(b)
        near[b].add(a)
    stars = _stars({sample: len(others) for sample, others in near.items()}, near.__getitem__)
    together = (
        [x for sample in (centre, *others) for x in members_of.get(sample, (sample,))] for centre, others in stars
    )
    return [DuplicateGroup(tuple(sorted(members)), kind) for members in together]


def _stars(degree: dict[int, int], neighbours: Neighbours) -> Iterator[tuple[int, list[int]]]:
    """Yield each centre with its neighbours that are not taken yet, in decreasing order of neighbours."""
    taken: set[int] = set()
    for centre in sorted((sample for sample in degree if degree[sample]), key=lambda sample: (-degree[sample], sample)):
        if centre not in taken and (others := sorted(neighbours(centre) - taken)):
            taken.update((centre, *others))
            yield centre, others


def _equal(hashes: Sequence[str]) -> dict[int, list[int]]:
    """Return the samples of each hash that occurs several times, by the first of them."""
    members: dict[str, list[int]] = defaultdict(list)
    for sample, text in enumerate(hashes):
        members[text].append(sample)
    return {same[0]: same for same in members.values() if len(same) > 1}


def _components(pairs: Any, count: int) -> Tensor:
    """Return the connected component of each sample, numbered by its first sample."""
    ends_P2 = np.asarray(pairs, np.int64).reshape(-1, 2)
    graph = coo_array((np.ones(len(ends_P2), np.int8), (ends_P2[:, 0], ends_P2[:, 1])), shape=(count, count))
    component_N = connected_components(graph, directed=False)[1]
    first_C = np.unique(component_N, return_index=True)[1]
    return torch.from_numpy(first_C[component_N])
