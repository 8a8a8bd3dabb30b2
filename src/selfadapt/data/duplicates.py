"""The same picture twice, or nearly so: groups that must stay on one side of every split.

Features of a strong network move when a picture is saved again at half its size (by more than two pictures of one class
differ), so where pixels are at hand they decide: thumbnails of 8×8 means of colour that correlate above 0.995. Where
they are not, samples count as copies if their features are equal, or, where features are many, if standardised ones
point the same way (cosine above 0.95; on photos of plants all but one such pair were copies). Few features
are alike by chance too often, so there only equal ones count. And where less than half of the rows are distinct, as in
a table of a few yes-or-no columns, equal ones are samples that are alike, not one sample that was copied.

Shapes: N samples, F features, T numbers of a thumbnail.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, normalize

_THUMBNAIL = 8
_SAME_PIXELS = 0.995
_FLAT = 4.0  # deviation of a thumbnail, of 255, below which a picture is too plain to be compared
_SAME_FEATURES = 0.95
_MANY_FEATURES = 256
_LEAST_DISTINCT = 0.5  # of the rows, for equal ones to be copies of one sample
_BLOCK = 4096

ReadPixels = Callable[[int], "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]"]


def find_duplicates(
    features_NF: Tensor, *, hashes: Sequence[str] | None = None, read_pixels: ReadPixels | None = None
) -> list[list[int]]:
    """The groups of samples that are copies of each other, each in rising order.

    `hashes` are of the samples' content. `read_pixels` gives one picture, H×W×C of 0..255, of whatever size.
    """
    pairs = _equal_hashes(hashes) if hashes is not None else []
    if read_pixels is not None:
        thumbnails = [_thumbnail(read_pixels(sample)) for sample in range(len(features_NF))]
        plain_N = torch.tensor([bool(t.std() < _FLAT) for t in thumbnails])
        pairs += _alike(normalize(torch.stack([t - t.mean() for t in thumbnails])), _SAME_PIXELS, ~plain_N)
    else:
        pairs += _same_features(features_NF.float())
    return _joined(pairs, len(features_NF))


def group_numbers(groups: Sequence[Sequence[int]], count: int) -> Tensor:
    """A number for each sample: that of its group, or one of its own."""
    number_N = torch.arange(count)
    for members in groups:
        number_N[list(members)] = members[0]
    return number_N


def joined_groups(first_N: Tensor, second_N: Tensor) -> Tensor:
    """Groups that hold together what either of two groupings does."""
    pairs = []
    for number_N in (first_N, second_N):
        order = number_N.argsort(stable=True).tolist()
        pairs += [(a, b) for a, b in pairwise(order) if number_N[a] == number_N[b]]
    return group_numbers(_joined(pairs, len(first_N)), len(first_N))


def _thumbnail(pixels: "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]") -> Tensor:
    values = torch.tensor(np.asarray(pixels)).float()
    values_CHW = values.unsqueeze(0) if values.dim() == 2 else values.permute(2, 0, 1)[:3]
    if len(values_CHW) == 1:
        values_CHW = values_CHW.repeat(3, 1, 1)
    return adaptive_avg_pool2d(values_CHW, _THUMBNAIL).flatten()


def _same_features(features_NF: Tensor) -> list[tuple[int, int]]:
    rows = (features_NF + 0.0).numpy()  # -0 becomes 0, which it equals
    equal = _equal_hashes([blake2b(row.tobytes()).hexdigest() for row in rows])
    distinct = len(features_NF) - len(equal)
    if distinct < _LEAST_DISTINCT * len(features_NF):
        return []
    return equal if features_NF.shape[1] < _MANY_FEATURES else _same_way(features_NF)


def _same_way(features_NF: Tensor) -> list[tuple[int, int]]:
    """Pairs whose standardised features point the same way and are about as long."""
    scaled_NF = (features_NF - features_NF.mean(0)) / features_NF.std(0, correction=0).clamp_min(1e-6)
    candidates = _alike(normalize(scaled_NF), _SAME_FEATURES, scaled_NF.norm(dim=1) > 1e-6)
    length_N = scaled_NF.norm(dim=1).log()
    return [(a, b) for a, b in candidates if abs(float(length_N[a] - length_N[b])) < 1 - _SAME_FEATURES + 1e-6]


def _equal_hashes(hashes: Sequence[str]) -> list[tuple[int, int]]:
    """Each sample but the first of its hash, with that first one."""
    first: dict[str, int] = {}
    return [(first[text], sample) for sample, text in enumerate(hashes) if first.setdefault(text, sample) != sample]


def _alike(unit_NT: Tensor, enough: float, judged_N: Tensor) -> list[tuple[int, int]]:
    """Pairs whose cosine is at least `enough`, block by block."""
    pairs: list[tuple[int, int]] = []
    unit_NT = unit_NT * judged_N.unsqueeze(1)
    for start in range(0, len(unit_NT), _BLOCK):
        cosine = unit_NT[start : start + _BLOCK] @ unit_NT[start:].T
        for a, b in (cosine >= enough).nonzero().tolist():
            if a < b:
                pairs.append((start + a, start + b))
    return pairs


def _joined(pairs: list[tuple[int, int]], count: int) -> list[list[int]]:
    """The groups that these pairs make."""
    parent = list(range(count))

    def root(sample: int) -> int:
        while parent[sample] != sample:
            parent[sample] = parent[parent[sample]]
            sample = parent[sample]
        return sample

    for a, b in pairs:
        low, high = sorted((root(a), root(b)))
        parent[high] = low
    groups: dict[int, list[int]] = {}
    for sample in sorted({sample for pair in pairs for sample in pair}):
        groups.setdefault(root(sample), []).append(sample)
    return list(groups.values())
