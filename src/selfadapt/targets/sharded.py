"""Rows shared by several processes, on top of packed rows of any format.

Replicated: every process stores every row. Each step sends its rows to all processes, so the tables stay identical.
Sharded: process r stores the rows i with i mod P = r. Each step fetches the rows of its batch from their owners and
sends them back, and a process needs memory for N/P rows only.

Rows are sent packed: top-8 rows as 48 bytes. In a training loop that knows which samples every process was dealt, the
owners and numbers of rows follow from that, so a step takes one collective for replicated rows and two for sharded
ones, or none if each process is dealt the samples whose rows it stores. A row that must not change, of an unreadable
sample or of a prediction that is not finite, is sent as it was.

In a custom loop, indices and numbers of rows are exchanged too. A sample in the batches of two processes, as with
samplers that pad, then moves once: both start from the same row, and the process of lower rank decides.

Shapes: B rows of this process's batch, D rows dealt to it, n rows stored here, N samples, K columns, M numbers of a
packed row, P processes.
"""

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from selfadapt.core import distributed
from selfadapt.core.device import to_device
from selfadapt.data.batch import Dealt
from selfadapt.targets.rows import PackedRows, Rows


class _DistributedRows(Rows):
    """Rows of which this process stores some or all in `local`."""

    def __init__(self, local: PackedRows, num_rows: int) -> None:
        self.local, self.num_rows, self.num_columns = local, num_rows, local.num_columns
        self.device, self.nbytes, self.exact = local.device, local.nbytes, local.exact
        self.in_file = local.in_file

    def write(self, index_B: Tensor, rows_BK: Tensor, valid_B1: Tensor | None = None) -> Tensor:
        packed_BM = self.local.pack(index_B, rows_BK)
        if self.dealt is None:
            self._exchange(index_B, packed_BM)
        else:
            self._send(self.dealt, self._with_unchanged(self.dealt, packed_BM, valid_B1))
        return self.local.unpack(packed_BM)

    def _with_unchanged(self, dealt: Dealt, packed_BM: Tensor, valid_B1: Tensor | None) -> Tensor:
        """Return the rows dealt to this process (D×M): new where they are valid, else as they were."""
        if valid_B1 is None and dealt.all_readable:
            return packed_BM
        packed_DM = self._before(dealt).clone()
        position_B = to_device(_position(dealt), packed_DM.device)
        if valid_B1 is not None:
            packed_BM = torch.where(valid_B1, packed_BM, packed_DM.index_select(0, position_B))
        return packed_DM.index_copy_(0, position_B, packed_BM)

    @abstractmethod
    def _before(self, dealt: Dealt) -> Tensor:
        """Return the stored rows dealt to this process (D×M)."""

    @abstractmethod
    def _send(self, dealt: Dealt, packed_DM: Tensor) -> None:
        """Store the rows dealt to this process, and those that others send, without repeats."""

    @abstractmethod
    def _exchange(self, index_B: Tensor, packed_BM: Tensor) -> None:
        """Do the same where each process knows its own samples only."""

    def state_dict(self) -> dict[str, Tensor]:
        return self.local.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.local.load_state_dict(state)


class ReplicatedRows(_DistributedRows):
    def __init__(self, local: PackedRows) -> None:
        super().__init__(local, local.num_rows)

    def read(self, index_B: Tensor) -> Tensor:
        return self.local.unpack(self.local.read_packed(index_B if self.dealt is None else self.dealt.own))

    def _before(self, dealt: Dealt) -> Tensor:
        return self.local.read_packed(dealt.parts[dealt.rank])

    def _send(self, dealt: Dealt, packed_DM: Tensor) -> None:
        packed = distributed.all_gather_known(packed_DM, [len(part) for part in dealt.parts])
        self.local.write_packed(torch.cat(dealt.parts), packed)

    def _exchange(self, index_B: Tensor, packed_BM: Tensor) -> None:
        index_n, packed_nM = distributed.all_gather_rows(index_B), distributed.all_gather_rows(packed_BM)
        self.local.write_packed(*_without_repeats(index_n, packed_nM))

    def fill(self, index_n: Tensor, rows_nK: Tensor) -> None:
        self.local.fill(index_n, rows_nK)


class ShardedRows(_DistributedRows):
    def __init__(self, num_rows: int, allocate: Callable[[int], PackedRows]) -> None:
        """`allocate` creates the rows of one process, given their number."""
        self.world_size, self.rank = distributed.world_size(), distributed.rank()
        super().__init__(allocate(len(range(self.rank, num_rows, self.world_size))), num_rows)
        self._fetched: tuple[Dealt, Tensor] | None = None  # the rows of the last step that were read

    def read(self, index_B: Tensor) -> Tensor:
        if self.dealt is not None:
            packed_DM = self._before(self.dealt)
            if not self.dealt.all_readable:
                packed_DM = packed_DM.index_select(0, to_device(_position(self.dealt), packed_DM.device))
            return self.local.unpack(packed_DM)
        positions = self._by_owner(index_B)
        requested = distributed.all_to_all_rows([index_B[position] // self.world_size for position in positions])
        answers = distributed.all_to_all_rows([self.local.read_packed(index_n) for index_n in requested])
        order_B = torch.cat(positions).argsort()
        return self.local.unpack(torch.cat(answers)[order_B])

    def _before(self, dealt: Dealt) -> Tensor:
        if dealt.at_home:
            return self.local.read_packed(dealt.parts[dealt.rank] // self.world_size)
        if self._fetched is None or self._fetched[0] is not dealt:
            order_D, sizes = self._owned_order(dealt)
            wanted, lengths = self._stored_here(dealt)
            received = distributed.all_to_all_known(self.local.read_packed(wanted), lengths, sizes)
            packed_DM = torch.empty_like(received)
            self._fetched = dealt, packed_DM.index_copy_(0, to_device(order_D, received.device), received)
        return self._fetched[1]

    def _send(self, dealt: Dealt, packed_DM: Tensor) -> None:
        if dealt.at_home:
            self.local.write_packed(dealt.parts[dealt.rank] // self.world_size, packed_DM)
            return
        order_D, sizes = self._owned_order(dealt)
        stored, lengths = self._stored_here(dealt)
        sent = packed_DM.index_select(0, to_device(order_D, packed_DM.device))
        self.local.write_packed(stored, distributed.all_to_all_known(sent, sizes, lengths))
        self._fetched = None

    def _owned_order(self, dealt: Dealt) -> tuple[Tensor, list[int]]:
        """Return the order in which owners hold the rows dealt to this process, and their number for each owner."""
        owner_D = dealt.parts[dealt.rank] % self.world_size
        return owner_D.argsort(stable=True), torch.bincount(owner_D, minlength=self.world_size).tolist()

    def _stored_here(self, dealt: Dealt) -> tuple[Tensor, list[int]]:
        """Return the places of the rows in this process that were dealt to each process, and their numbers."""
        parts = [part[part % self.world_size == self.rank] // self.world_size for part in dealt.parts]
        return torch.cat(parts), [len(part) for part in parts]

    def _exchange(self, index_B: Tensor, packed_BM: Tensor) -> None:
        positions = self._by_owner(index_B)
        sent = [index_B[position] // self.world_size for position in positions]
        index_n = torch.cat(distributed.all_to_all_rows(sent))
        packed_nM = torch.cat(distributed.all_to_all_rows([packed_BM[position] for position in positions]))
        self.local.write_packed(*_without_repeats(index_n, packed_nM))

    def fill(self, index_n: Tensor, rows_nK: Tensor) -> None:
        here_n = index_n % self.world_size == self.rank
        packed_nM = self.local.pack(index_n[here_n], rows_nK[here_n])
        self.local.write_packed(index_n[here_n] // self.world_size, packed_nM)

    def _by_owner(self, index_B: Tensor) -> list[Tensor]:
        owner_B = index_B % self.world_size
        return [(owner_B == rank).nonzero().flatten() for rank in range(self.world_size)]


def _position(dealt: Dealt) -> Tensor:
    """Return the position of each readable sample among those dealt to this process."""
    whole_D = dealt.parts[dealt.rank]
    if dealt.all_readable:
        return torch.arange(len(whole_D))
    return torch.isin(whole_D, dealt.own).nonzero().flatten()


def _without_repeats(index_n: Tensor, packed_nM: Tensor) -> tuple[Tensor, Tensor]:
    """Keep the first occurrence of each row."""
    if len(set(samples := index_n.tolist())) == len(samples):
        return index_n, packed_nM
    first = {sample: position for position, sample in reversed(list(enumerate(samples)))}
    kept = torch.tensor(sorted(first.values()), device=index_n.device)
    return index_n[kept], packed_nM[kept]
