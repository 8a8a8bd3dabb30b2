"""Rows for several processes, on top of rows of any kind.

Replicated: every process keeps every row. A step sends its rows to all others, so the tables stay the same.
Sharded: process r keeps the rows i with i mod P = r. A step fetches the rows of its batch from their owners and sends
them back, and a process needs memory for N/P rows only.

Rows travel packed, as they are kept: top-8 rows as 48 bytes. A sample that is in the batch of two processes, as
samplers that pad make it, moves once: both start from the same row, and the process of the lowest rank decides.

Shapes: B rows of this process's batch, N samples, K columns, P processes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from selfadapt.core import distributed
from selfadapt.targets.rows import PackedRows


class _OnTopOf(ABC):
    """What rows for several processes leave to the rows that this process keeps."""

    local: PackedRows

    @property
    def device(self) -> torch.device:
        return self.local.device

    @property
    def nbytes(self) -> int:
        return self.local.nbytes

    @property
    def exact(self) -> bool:
        return self.local.exact

    def moved(self, index_B: Tensor, towards_BK: Tensor, share: float) -> Tensor:
        return self.write(index_B, self.read(index_B).lerp_(towards_BK, share))

    @abstractmethod
    def read(self, index_B: Tensor) -> Tensor: ...

    @abstractmethod
    def write(self, index_B: Tensor, rows_BK: Tensor) -> Tensor: ...

    def state_dict(self) -> dict[str, Tensor]:
        return self.local.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.local.load_state_dict(state)


class ReplicatedRows(_OnTopOf):
    def __init__(self, rows: PackedRows) -> None:
        self.local = rows
        self.num_rows, self.num_columns = rows.num_rows, rows.num_columns

    def read(self, index_B: Tensor) -> Tensor:
        return self.local.read(index_B)

    def write(self, index_B: Tensor, rows_BK: Tensor) -> Tensor:
        packed_BM = self.local.packed(index_B, rows_BK)
        self.local.keep(*_once(distributed.all_gather_rows(index_B), distributed.all_gather_rows(packed_BM)))
        return self.local.unpacked(packed_BM)

    def fill(self, index_n: Tensor, rows_nK: Tensor) -> None:
        self.local.fill(index_n, rows_nK)


class ShardedRows(_OnTopOf):
    def __init__(self, num_rows: int, make: Callable[[int], PackedRows]) -> None:
        """`make` makes the rows that one process keeps, given their number."""
        self.num_rows = num_rows
        self.parts, self.own = distributed.world_size(), distributed.rank()
        self.local = make(len(range(self.own, num_rows, self.parts)))
        self.num_columns = self.local.num_columns

    def read(self, index_B: Tensor) -> Tensor:
        places = self._by_owner(index_B)
        wanted = distributed.all_to_all_rows([index_B[place] // self.parts for place in places])
        answers = distributed.all_to_all_rows([self.local.take(index_n) for index_n in wanted])
        back_B = torch.cat(places).argsort()
        return self.local.unpacked(torch.cat(answers)[back_B])

    def write(self, index_B: Tensor, rows_BK: Tensor) -> Tensor:
        packed_BM, places = self.local.packed(index_B, rows_BK), self._by_owner(index_B)
        index_n = torch.cat(distributed.all_to_all_rows([index_B[place] // self.parts for place in places]))
        packed_nM = torch.cat(distributed.all_to_all_rows([packed_BM[place] for place in places]))
        self.local.keep(*_once(index_n, packed_nM))
        return self.local.unpacked(packed_BM)

    def fill(self, index_n: Tensor, rows_nK: Tensor) -> None:
        own_n = index_n % self.parts == self.own
        self.local.keep(index_n[own_n] // self.parts, self.local.packed(index_n[own_n], rows_nK[own_n]))

    def _by_owner(self, index_B: Tensor) -> list[Tensor]:
        owner_B = index_B % self.parts
        return [(owner_B == part).nonzero().flatten() for part in range(self.parts)]


def _once(index_n: Tensor, packed_nM: Tensor) -> tuple[Tensor, Tensor]:
    """Each row once, as it comes first."""
    if len(set(samples := index_n.tolist())) == len(samples):
        return index_n, packed_nM
    first = {sample: position for position, sample in reversed(list(enumerate(samples)))}
    kept = torch.tensor(sorted(first.values()), device=index_n.device)
    return index_n[kept], packed_nM[kept]
