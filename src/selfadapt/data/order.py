"""The order of an epoch, and which process gets which sample. Both follow from the seed and the epoch.

    global      All samples in random order, and each batch is divided among the processes. Every process knows the
                whole order, and a sample may come to another process in every epoch.
    shards:V    Sample i belongs to virtual shard i mod V. Each shard is shuffled, and batches take samples from the
                shards in turn. Process r of P has the shards v with v mod P = r, that is the samples i with
                i mod P = r, in all epochs; it knows the order of these alone.

With shards:V, a batch consists of the same samples in any number of processes that divides V. The batches of an epoch
differ in size by at most one sample, and so do the shares of the processes.

Shapes: B samples of a batch, N samples in total, n of them of this process.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from selfadapt.core.errors import UserError
from selfadapt.core.rng import seeded
from selfadapt.data.batch import Dealt


class Step(NamedTuple):
    """The samples of a step."""

    size: int  # over all processes
    dealt: Dealt


class Order(Protocol):
    """The steps of an epoch."""

    def step(self, number: int) -> Step: ...


@dataclass(frozen=True, kw_only=True)
class Shuffle:
    """How an order is drawn, and this process's place among the others.

    Raises:
        UserError: If the processes cannot share the virtual shards evenly.
    """

    num_samples: int
    steps: int  # of an epoch
    seed: int
    shards: int | None = None  # virtual shards; None for a global order
    rank: int = 0
    processes: int = 1

    def __post_init__(self) -> None:
        check_shards(self.shards, self.processes)

    @property
    def own(self) -> slice:
        """The samples that this process may get."""
        return slice(None) if self.shards is None else slice(self.rank, None, self.processes)

    def order(self, epoch: int) -> Order:
        return _Whole(self, epoch) if self.shards is None else _Shards(self, self.shards, epoch)

    def bounds(self, step: int) -> tuple[int, int]:
        """Return the positions in the order of an epoch at which a step starts and ends, as `tensor_split` does."""
        size, larger = divmod(self.num_samples, self.steps)
        start, end = (size * number + min(number, larger) for number in (step, step + 1))
        return start, end


class _Whole:
    def __init__(self, shuffle: Shuffle, epoch: int) -> None:
        self.shuffle = shuffle
        self.order_N = torch.randperm(shuffle.num_samples, generator=seeded(shuffle.seed, "order", epoch))

    def step(self, number: int) -> Step:
        start, end = self.shuffle.bounds(number)
        parts = self.order_N[start:end].tensor_split(self.shuffle.processes)
        return Step(end - start, Dealt(parts, parts[self.shuffle.rank], self.shuffle.rank))


class _Shards:
    """Position p of the epoch belongs to shard p mod V, so the q-th sample of this process has position q P + r."""

    def __init__(self, shuffle: Shuffle, shards: int, epoch: int) -> None:
        self.shuffle = shuffle
        own = range(shuffle.rank, shuffle.num_samples, shuffle.processes)
        self.order_n = torch.empty(len(own), dtype=torch.int64)
        count = shards // shuffle.processes  # shards of this process
        for number in range(count):
            shard, places = shuffle.rank + number * shuffle.processes, self.order_n[number::count]
            generator = seeded(shuffle.seed, "order", epoch, shard)
            places.copy_(torch.randperm(len(places), generator=generator).mul_(shards).add_(shard))

    def step(self, number: int) -> Step:
        start, end = self.shuffle.bounds(number)
        first, last = (-((self.shuffle.rank - bound) // self.shuffle.processes) for bound in (start, end))
        own_B = self.order_n[first:last]
        return Step(end - start, Dealt((own_B,), own_B, at_home=True))


def check_shards(shards: int | None, processes: int) -> None:
    """Raise a UserError unless each process gets the same number of virtual shards."""
    if shards and shards % processes:
        counts = ", ".join(str(count) for count in range(1, shards + 1) if shards % count == 0)
        raise UserError(
            f"--shuffle shards:{shards} cannot be shared by {processes} processes; use one of {counts} processes, or "
            "start a new run with another number of shards"
        )
