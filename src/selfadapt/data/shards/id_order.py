"""A random order of samples that depends on their ids alone, for samples and folds that do not follow the files.

Shapes: N samples, n of them.
"""

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor


def id_hashes(ids: Iterable[str], count: int, seed: int) -> Tensor:
    """A random integer for each id."""
    salt = str(seed).encode()[:64]
    words = (int.from_bytes(blake2b(own.encode(), digest_size=8, key=salt).digest(), "big") >> 1 for own in ids)
    return torch.from_numpy(np.fromiter(words, np.int64, count))


def drawn_by_hash(hash_N: Tensor, most: int) -> Tensor:
    """The positions of at most `most` samples with the smallest hashes, in order."""
    if len(hash_N) <= most:
        return torch.arange(len(hash_N))
    return torch.from_numpy(np.argpartition(hash_N.numpy(), most)[:most]).sort().values


def folds_by_hash(hash_N: Tensor, labels_N: Tensor, group_N: Tensor, folds: int) -> Tensor:
    """Assign each group to a fold in the order of its hash, class by class of its first sample.

    `group_N` holds the position of the first sample of each sample's group.
    """
    first_n = (group_N == torch.arange(len(group_N))).nonzero().flatten().numpy()
    order_n = first_n[np.lexsort((hash_N.numpy()[first_n], labels_N.numpy()[first_n]))]
    fold_N = np.empty(len(group_N), np.uint8)
    fold_N[order_n] = np.arange(len(order_n)) % folds
    return torch.from_numpy(fold_N[group_N.numpy()])
