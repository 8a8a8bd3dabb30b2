"""A batch of training samples.

Shapes: B samples of a batch, b of them in this process, or in a micro-batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Dealt:
    """The samples of a step, by their positions in the training set: on the host, so that no device is asked."""

    parts: tuple[Tensor, ...]  # dealt to each process, or only to this one
    own: Tensor  # dealt to this process, and readable
    rank: int = 0  # of this process in `parts`
    at_home: bool = False  # whether samples keep to their processes: i is always dealt to process i mod P

    @property
    def all_readable(self) -> bool:
        """Whether this process could read all of its samples."""
        return len(self.own) == len(self.parts[self.rank])

    def split(self, count: int) -> "Iterator[Dealt]":
        """Yield the samples of each of `count` micro-batches."""
        for parts in zip(*(part.tensor_split(count) for part in self.parts), strict=True):
            own_b = parts[self.rank]
            yield replace(self, parts=parts, own=own_b if self.all_readable else self.own[torch.isin(self.own, own_b)])


@dataclass(frozen=True)
class Batch:
    """B inputs (images as floats in 0..1) with their training labels and their positions in the training set."""

    input: Tensor
    label: Tensor
    index: Tensor
    whole: int | None = None  # size of the batch over all processes, if this is one process's share of it
    second: Tensor | None = None  # a second augmented view of each image, for methods that need two
    dealt: Dealt | None = None  # the same positions on the host, of every process

    @property
    def views(self) -> tuple[Tensor, ...]:
        return (self.input,) if self.second is None else (self.input, self.second)

    def __len__(self) -> int:
        return len(self.index)

    def split(self, count: int) -> "list[Batch]":
        """Split into `count` micro-batches of about equal size, or fewer if the batch is smaller than that."""
        if self.dealt is None:
            dealt: list[Dealt | None] = [None] * count
            sizes = [len(part) for part in torch.arange(len(self)).tensor_split(count)]
        else:
            dealt = [*self.dealt.split(count)]
            sizes = [len(part.own) for part in dealt if part is not None]
        seconds = [None] * count if self.second is None else self.second.split(sizes)
        columns = (values.split(sizes) for values in (self.input, self.label, self.index))
        parts = zip(*columns, seconds, dealt, strict=True)
        return [Batch(x, y, index, None, second, own) for x, y, index, second, own in parts if len(index)]
