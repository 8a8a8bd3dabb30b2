"""Rows shared by several processes, on top of packed rows of any format.

Replicated: every process stores every row. Each step sends its rows to all processes, so the tables stay identical.
Sharded: process r stores the rows i with i mod P = r. Each step fetches the rows of its batch from their owners and
sends them back, and a process needs memory for N/P rows only.

Rows are sent packed: top-8 rows as 48 bytes. A sample in the batches of two processes, as with samplers that pad,
moves once: both start from the same row, and the process of lower rank decides.

Shapes: B rows of this process's batch, n rows stored here, N samples, K columns, M numbers of a packed row, P
processes.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from selfadapt.core import distributed
from selfadapt.targets.rows import PackedRows, Rows


class _DistributedRows(Rows):
    """Rows of which this process stores some or all in `local`."""

    def __init__(self, local: PackedRows, num_rows: int) -> None:
        self.local, self.num_rows, self.num_columns = local, num_rows, local.num_columns
        self.device, self.nbytes, self.exact = local.device, local.nbytes, local.exact
        self.in_file = local.in_file

    def state_dict(self) -> dict[str, Tensor]:
        return self.local.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.local.load_state_dict(state)


class ReplicatedRows(_DistributedRows):
    def __init__(self, local: PackedRows) -> None:
        super().__init__(local, local.num_rows)

    def read(self, index_B: Tensor) -> Tensor:
        return self.local.read(index_B)

    def write(self, index_B: Tensor, rows_BK: Tensor) -> Tensor:
        packed_BM = self.local.pack(index_B, rows_BK)
        index_n, packed_nM = distributed.all_gather_rows(index_B), distributed.all_gather_rows(packed_BM)
        self.local.write_packed(*_without_repeats(index_n, packed_nM))
        return self.local.unpack(packed_BM)

    def fill(self, index_n: Tensor, rows_nK: Tensor) -> None:
        self.local.fill(index_n, rows_nK)


class ShardedRows(_DistributedRows):
    def __init__(self, num_rows: int, allocate: Callable[[int], PackedRows]) -> None:
        """`allocate` creates the rows of one process, given their number."""
        self.world_size, self.rank = distributed.world_size(), distributed.rank()
        super().__init__(allocate(len(range(self.rank, num_rows, self.world_size))), num_rows)

    def read(self, index_B: Tensor) -> Tensor:
        positions = self._by_owner(index_B)
        requested = distributed.all_to_all_rows([index_B[position] // self.world_size for position in positions])
        answers = distributed.all_to_all_rows([self.local.read_packed(index_n) for index_n in requested])
        order_B = torch.cat(positions).argsort()
        return self.local.unpack(torch.cat(answers)[order_B])

    def write(self, index_B: Tensor, rows_BK: Tensor) -> Tensor:
        packed_BM, positions = self.local.pack(index_B, rows_BK), self._by_owner(index_B)
        sent = [index_B[position] // self.world_size for position in positions]
        index_n = torch.cat(distributed.all_to_all_rows(sent))
        packed_nM = torch.cat(distributed.all_to_all_rows([packed_BM[position] for position in positions]))
        self.local.write_packed(*_without_repeats(index_n, packed_nM))
        return self.local.unpack(packed_BM)

    def fill(self, index_n: Tensor, rows_nK: Tensor) -> None:
        here_n = index_n % self.world_size == self.rank
        packed_nM = self.local.pack(index_n[here_n], rows_nK[here_n])
        self.local.write_packed(index_n[here_n] // self.world_size, packed_nM)

    def _by_owner(self, index_B: Tensor) -> list[Tensor]:
        owner_B = index_B % self.world_size
        return [(owner_B == rank).nonzero().flatten() for rank in range(self.world_size)]


def _without_repeats(index_n: Tensor, packed_nM: Tensor) -> tuple[Tensor, Tensor]:
    """Keep the first occurrence of each row."""
    if len(set(samples := index_n.tolist())) == len(samples):
        return index_n, packed_nM
    first = {sample: position for position, sample in reversed(list(enumerate(samples)))}
    kept = torch.tensor(sorted(first.values()), device=index_n.device)
    return index_n[kept], packed_nM[kept]
