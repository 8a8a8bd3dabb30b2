"""Initial targets: one-hot labels, or Gaussian noise for unlabelled data.

Both are generated in chunks, so that a store larger than memory can be filled.

Shapes: n rows of a chunk, N samples, K columns.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

_CHUNK_SIZE = 65_536


def one_hot_rows(labels_N: Tensor, num_classes: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield chunks (index_n, rows_nK) of one-hot labels (supervised, Section 3.1)."""
    wrong = ((labels_N < 0) | (labels_N >= num_classes)).nonzero()
    if len(wrong):
        sample = int(wrong[0])
        raise ValueError(
            f"label {int(labels_N[sample])} of sample {sample} is outside 0..{num_classes - 1}, as are {len(wrong)} of "
            f"{len(labels_N)} labels in total; pass the right num_classes or fix the labels"
        )
    for index_n in torch.arange(len(labels_N)).split(_CHUNK_SIZE):
        labels_n = labels_N[index_n.to(labels_N.device)].long().cpu()
        yield index_n, torch.nn.functional.one_hot(labels_n, num_classes).float()


def gaussian_rows(num_samples: int, num_features: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield chunks (index_n, rows_nK) drawn from N(0, I) (self-supervised, Section 6.1)."""
    generator = torch.Generator().manual_seed(seed)
    for index_n in torch.arange(num_samples).split(_CHUNK_SIZE):
        yield index_n, torch.randn(len(index_n), num_features, generator=generator)
