"""Splits of a data set: a validation split that keeps class proportions, cross-validation folds, and groups.

Samples of one group (duplicates of an image, photos of one patient) always stay together; otherwise one leaks the
answer for another. Folds never follow the file order, because wrong labels are often adjacent in sorted folders.

Shapes: N samples, K classes.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from selfadapt.core.errors import UserError
from selfadapt.core.rng import seeded

if TYPE_CHECKING:
    from selfadapt.data.dataset import Samples


def split_off(
    samples: "Samples", fraction: float, generator: torch.Generator, *, fewest: int = 0
) -> "tuple[Samples, Samples]":
    """Split samples at random within each class.

    Args:
        samples: The samples to split. Samples of a group stay together.
        fraction: Share of each class that is held out.
        generator: Source of random numbers.
        fewest: Minimum number of held-out samples of each class.

    Returns:
        The remaining samples and the held-out samples.

    Raises:
        UserError: One of the two would be empty.
    """
    heads, chosen = _first_of_each_group(samples), []
    labels_n = samples.labels[heads]
    for label in labels_n.unique():
        members = heads[labels_n == label]
        shuffled = members[torch.randperm(len(members), generator=generator)]
        chosen.append(shuffled[: max(fewest, round(fraction * len(members)))])
    held_out = torch.cat(chosen)
    if samples.groups is not None:
        held_out = _whole_groups(samples.groups, held_out)
        if not fewest:  # otherwise the held-out samples are the ones that need every class
            held_out = _without_whole_classes(samples.labels, samples.groups, held_out)
    held_out_N = torch.zeros(len(samples), dtype=torch.bool)
    held_out_N[held_out] = True
    if not held_out_N.any() or held_out_N.all():
        grouped = samples.groups is not None and len(set(samples.groups)) < len(samples)
        raise UserError(
            f"{len(samples)} samples{' with groups that stay together' if grouped else ''} are too few to hold out "
            f"{fraction:.0%} of each class; add samples, add a validation split, or train without one (--validation 0)"
        )
    return samples.take((~held_out_N).nonzero().flatten()), samples.take(held_out_N.nonzero().flatten())


def _first_of_each_group(samples: "Samples") -> Tensor:
    if samples.groups is None:
        return torch.arange(len(samples))
    first = {group: position for position, group in reversed(list(enumerate(samples.groups)))}
    return torch.tensor(sorted(first.values()))


def _whole_groups(groups: Sequence[str], chosen: Tensor) -> Tensor:
    """Extend the chosen samples by all others of their groups."""
    wanted = {groups[position] for position in chosen.tolist()}
    return torch.tensor([i for i, group in enumerate(groups) if group in wanted], dtype=torch.int64)


def _without_whole_classes(labels_N: Tensor, groups: Sequence[str], held_out: Tensor) -> Tensor:
    """Drop the groups whose removal would leave a class without training samples."""
    empty_K = torch.bincount(labels_N) == torch.bincount(labels_N[held_out], minlength=int(labels_N.max()) + 1)
    needed = {groups[position] for position in held_out.tolist() if empty_K[labels_N[position]]}
    return torch.tensor([i for i in held_out.tolist() if groups[i] not in needed], dtype=torch.int64)


def content_keys(values_NF: Tensor) -> list[bytes]:
    """Return a key for each row that depends only on its values."""
    rows = (values_NF.float() + 0.0).numpy()  # -0 becomes 0, which it equals
    return [blake2b(row.tobytes(), digest_size=16).digest() for row in rows]


def assign_folds(
    labels_N: Tensor, folds: int, seed: int, groups_N: Tensor | None = None, keys_N: Sequence[bytes] | None = None
) -> Tensor:
    """Assign samples to stratified folds of about equal size.

    Args:
        labels_N: Class of each sample.
        folds: Number of folds.
        seed: Seed of the random order in which samples are assigned.
        groups_N: Group number of each sample; groups are never divided. By default, all samples are independent.
        keys_N: Content of each sample (`content_keys`). If given, the order follows a seeded hash of the keys, so that
            the folds depend neither on the order of the samples nor on the names of the classes.

    Returns:
        The fold of each sample.
    """
    count = len(labels_N)
    shuffled_N = torch.randperm(count, generator=seeded(seed, "folds")) if keys_N is None else _by_key(keys_N, seed)
    fold_N = torch.full((count,), -1)
    loads = [0] * folds
    loads_of_class = [[0] * folds for _ in range(int(labels_N.max()) + 1)]
    if groups_N is not None:
        number_N = groups_N.unique(return_inverse=True)[1]
        rank_N = shuffled_N.argsort()
        all_groups = number_N.argsort(stable=True).split(torch.bincount(number_N).tolist())
        groups = [members for members in all_groups if len(members) > 1]
        for members in sorted(groups, key=lambda members: (-len(members), int(rank_N[members].min()))):
            main = int(labels_N[members[rank_N[members].argsort()]].mode().values)
            fold = min(range(folds), key=lambda f: (loads_of_class[main][f], loads[f]))
            fold_N[members] = fold
            loads[fold] += len(members)
            for label in labels_N[members].tolist():
                loads_of_class[label][fold] += 1
    alone_n = shuffled_N[fold_N[shuffled_N] < 0]
    # Classes are visited in the order of their first sample, so that their names do not matter. Each class is cut where
    # its folds are full: if samples or groups are added or removed, only samples near the cuts change their fold.
    # Samples of equal content are dealt out in turn instead.
    contents = range(count) if keys_N is None else keys_N
    for label in dict.fromkeys(labels_N[alone_n].tolist()):
        of_class, class_n = loads_of_class[label], alone_n[labels_N[alone_n] == label]
        for sample in class_n.tolist():
            fold_N[sample] = fold = min(range(folds), key=lambda f: (of_class[f], loads[f]))
            of_class[fold] += 1
            loads[fold] += 1
        first_of = {contents[sample]: sample for sample in reversed(class_n.tolist())}
        firsts = torch.tensor([sample for sample in class_n.tolist() if first_of[contents[sample]] == sample])
        fold_N[firsts] = fold_N[firsts].sort().values
    return fold_N


def _by_key(keys_N: Sequence[bytes], seed: int) -> Tensor:
    salt = str(seed).encode()[:64]
    return torch.tensor(sorted(range(len(keys_N)), key=lambda i: blake2b(keys_N[i], key=salt).digest()))
