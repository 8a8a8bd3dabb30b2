"""Passes over the features in blocks, each process over its own range of samples.

The ranges are whole blocks of one grid, in the order of the ranks. So all processes together add up the same blocks as
one process does, and results for each sample are in order when they are gathered.

Shapes: N samples, n of a block, F features.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from selfadapt.core import distributed
from selfadapt.core.progress import StageProgress, no_stages
from selfadapt.data.shards.feature_shards import FeatureShards

PassProgress = StageProgress  # the pass, samples of this process that are done, all of them
no_pass_progress = no_stages

_NUMBERS = 2**23  # in the largest table of a block
_ROWS = (256, 8192)


@dataclass(frozen=True)
class Passes:
    """The samples of this process, and how many of them a block has."""

    shards: FeatureShards
    start: int
    stop: int
    rows: int
    on_progress: PassProgress

    @classmethod
    def over(cls, shards: FeatureShards, width: int, on_progress: PassProgress = no_pass_progress) -> "Passes":
        """Passes in blocks whose tables may have up to `width` columns."""
        rows = min(max(_ROWS[0], _NUMBERS // width), _ROWS[1])
        blocks, rank, processes = -(-len(shards) // rows), distributed.rank(), distributed.world_size()
        start, stop = (min(len(shards), blocks * number // processes * rows) for number in (rank, rank + 1))
        return cls(shards, start, stop, rows, on_progress)

    def __len__(self) -> int:
        return self.stop - self.start

    def blocks(self, name: str) -> Iterator[tuple[slice, Tensor]]:
        """Yield the samples of this process, and report progress before and after each block."""
        self.on_progress(name, 0, len(self))
        for block, features_nF in self.shards.blocks(self.rows, self.start, self.stop):
            yield block, features_nF
            self.on_progress(name, block.stop - self.start, len(self))

    def own(self, dtype: torch.dtype) -> Tensor:
        """An empty value for each sample of this process."""
        return torch.empty(len(self), dtype=dtype)

    def place(self, block: slice) -> slice:
        """Where a block is among the samples of this process."""
        return slice(block.start - self.start, block.stop - self.start)
