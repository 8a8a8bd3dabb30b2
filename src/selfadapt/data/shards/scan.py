"""The first pass over features: checks, mean and scale of each feature, and a hash of the content of each row.

Shapes: N samples, n of a block, F features.
"""

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from selfadapt.core import distributed
from selfadapt.data.input_statistics import scale_of
from selfadapt.data.shards.passes import Passes


@dataclass(frozen=True)
class Scan:
    mean_F: Tensor
    std_F: Tensor
    largest_F: Tensor  # absolute value
    content_N: Tensor  # 64 bits of a hash of each row, as an integer

    @property
    def scale_F(self) -> Tensor:
        """The divisors that standardise the features, as `feature_scale` chooses them."""
        return scale_of(self.std_F, self.largest_F)


def scan(passes: Passes) -> Scan:
    """Read all samples once.

    Raises:
        ValueError: If values are not finite float32 numbers.
    """
    origin_F = passes.shards.read(slice(0, 1))[0].double().nan_to_num()  # differences from it lose no digits
    sums_2F, largest_F = torch.zeros(2, passes.shards.dimensions).double(), torch.zeros(passes.shards.dimensions)
    content_n, bad = passes.own(torch.int64), torch.zeros(2).double()
    for block, features_nF in passes.blocks("reading features"):
        finite_n = features_nF.isfinite().all(1)
        if not bool(finite_n.all()):
            row = block.start + int((~finite_n).nonzero()[0])
            bad = torch.tensor([bad[0] + (~finite_n).sum(), max(float(bad[1]), len(passes.shards) - row)]).double()
            continue
        from_origin_nF = features_nF.double() - origin_F
        sums_2F += torch.stack((from_origin_nF.sum(0), from_origin_nF.square().sum(0)))
        torch.maximum(largest_F, features_nF.abs().amax(0), out=largest_F)
        content_n[passes.place(block)] = _hashes(features_nF)
    if distributed.all_reduce_sum(bad[:1]):
        first = len(passes.shards) - int(distributed.all_reduce_max(bad[1:]))
        raise ValueError(passes.shards.not_finite(int(bad[0]), first))
    mean_F, square_F = distributed.all_reduce_sum(sums_2F) / len(passes.shards)
    return Scan(
        mean_F=(mean_F + origin_F).float(),
        std_F=(square_F - mean_F.square()).clamp_min(0).sqrt().float(),
        largest_F=distributed.all_reduce_max(largest_F),
        content_N=distributed.all_gather_rows(content_n),
    )


def _hashes(features_nF: Tensor) -> Tensor:
    rows = (features_nF + 0.0).numpy()  # -0 becomes 0, which it equals
    digests = b"".join(blake2b(row, digest_size=8).digest() for row in rows)
    return torch.from_numpy(np.frombuffer(digests, np.int64).copy())
