"""Samples dealt out to folds, so that each class, and all samples together, are spread evenly.

Never in the order of the files: where a folder is sorted, wrong labels stand together. Samples of one group (duplicates
of one image, photos of one patient) stay together, else one of them answers for the other. With keys that follow the
content of the samples (`content_keys`) folds depend neither on their order nor on the names of the classes.

Shapes: N samples.
"""

from collections.abc import Sequence
from hashlib import blake2b

import torch
from torch import Tensor

from selfadapt.core.rng import seeded


def content_keys(values_NF: Tensor) -> list[bytes]:
    """A key for each row, the same wherever it stands."""
    rows = (values_NF.float() + 0.0).numpy()  # -0 becomes 0, which it equals
    return [blake2b(row.tobytes(), digest_size=16).digest() for row in rows]


def deal_into_folds(
    labels_N: Tensor, folds: int, seed: int, groups_N: Tensor | None = None, keys_N: Sequence[bytes] | None = None
) -> Tensor:
    """The fold of each sample. `groups_N` holds a number for each group; without it every sample is alone.

    `keys_N` decide the order in which samples are dealt; without them it is drawn.
    """
    count = len(labels_N)
    shuffled_N = torch.randperm(count, generator=seeded(seed, "folds")) if keys_N is None else _by_key(keys_N, seed)
    fold_N = torch.full((count,), -1)
    loads = [0] * folds
    loads_of_class = [[0] * folds for _ in range(int(labels_N.max()) + 1)]
    if groups_N is not None:
        number_N = groups_N.unique(return_inverse=True)[1]
        rank_N = shuffled_N.argsort()
        together = number_N.argsort(stable=True).split(torch.bincount(number_N).tolist())
        groups = [members for members in together if len(members) > 1]
        for members in sorted(groups, key=lambda members: (-len(members), int(rank_N[members].min()))):
            main = int(labels_N[members[rank_N[members].argsort()]].mode().values)
            fold = min(range(folds), key=lambda f: (loads_of_class[main][f], loads[f]))
            fold_N[members] = fold
            loads[fold] += len(members)
            for label in labels_N[members].tolist():
                loads_of_class[label][fold] += 1
    alone_n = shuffled_N[fold_N[shuffled_N] < 0]
    first_K = torch.full(
        (len(loads_of_class),), count
    )  # classes in the order of their first sample, not of their names
    first_K.scatter_reduce_(0, labels_N[alone_n], torch.arange(len(alone_n)), "amin")
    by_class_n = alone_n[first_K[labels_N[alone_n]].argsort(stable=True)]
    for sample, label in zip(by_class_n.tolist(), labels_N[by_class_n].tolist(), strict=True):
        of_class = loads_of_class[label]
        fold = min(range(folds), key=lambda f: (of_class[f], loads[f]))
        fold_N[sample] = fold
        of_class[fold] += 1
        loads[fold] += 1
    return fold_N


def _by_key(keys_N: Sequence[bytes], seed: int) -> Tensor:
    salt = str(seed).encode()
    return torch.tensor(sorted(range(len(keys_N)), key=lambda i: blake2b(keys_N[i], key=salt[:64]).digest()))
