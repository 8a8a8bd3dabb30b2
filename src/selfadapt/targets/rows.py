"""Storage backends for the rows of a target store: device memory, host memory, or a memory-mapped file.

Rows on the host beside an accelerator are copied to it for a step and back. Within a step of the training loop the host
waits for neither copy: it knows the samples of the batch (`Dealt`), and it writes rows when they have arrived.

Shapes: B rows of a batch, N samples, K columns (classes or features), M numbers of a packed row.
"""

import os
from abc import ABC, abstractmethod
from collections import deque
from pathlib import Path

import torch
from torch import Tensor

from selfadapt.core.device import Arriving, copies_from_pinned, to_device
from selfadapt.core.errors import UserError
from selfadapt.data.batch import Dealt

_GOLDEN_RATIO = 2654435769  # 2^32 divided by the golden ratio: neighbouring rows get dissimilar draws
_DROPPED_BITS = 13  # float32 has a mantissa of 23 bits, float16 one of 10
_STEPS = 1 << _DROPPED_BITS


class Rows(ABC):
    """N rows of K numbers, read and written as float32 whatever the storage format."""

    num_rows: int
    num_columns: int
    device: torch.device
    nbytes: int
    exact: bool  # whether a row is stored without rounding
    in_file: bool = False  # whether the rows are mapped from a file
    dealt: Dealt | None = None  # the samples of the current step; reads and writes are of these alone

    def move(self, index_B: Tensor, towards_BK: Tensor, share: float, valid_B1: Tensor | None = None) -> Tensor:
        """Move rows this share of the way, and return a copy of them as stored; see `write` for `valid_B1`."""
        return self.write(index_B, self.read(index_B).lerp_(towards_BK, share), valid_B1)

    @abstractmethod
    def read(self, index_B: Tensor) -> Tensor:
        """Return a copy of these rows (B×K)."""

    @abstractmethod
    def write(self, index_B: Tensor, rows_BK: Tensor, valid_B1: Tensor | None = None) -> Tensor:
        """Store the rows that are valid, by default all. Return all as they would be stored."""

    @abstractmethod
    def fill(self, index_n: Tensor, rows_nK: Tensor) -> None:
        """Store initial rows that every process computes itself, without communication."""

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]: ...

    @abstractmethod
    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...


class PackedRows(Rows):
    """A table in this process. Each row is packed into M numbers, the form in which it is stored and sent.

    `device` is where rows are computed; the table may be on the host beside it.
    """

    def __init__(self, table_NM: Tensor, num_columns: int, device: torch.device | None = None) -> None:
        self.table_NM, self.num_rows, self.num_columns = table_NM, len(table_NM), num_columns
        self.device = table_NM.device if device is None else device
        self.nbytes, self.exact = table_NM.nbytes, table_NM.dtype == torch.float32
        self._wide = _as_wide_numbers(table_NM)
        self._on_host = table_NM.device.type == "cpu" != self.device.type
        self._returning: deque[tuple[Tensor, Arriving]] = deque()  # positions and rows to store when they have arrived
        self.writes = 0

    @abstractmethod
    def pack(self, index_B: Tensor, rows_BK: Tensor) -> Tensor:
        """Return the rows in the storage format (B×M), rounded as `write` would round them now."""

    @abstractmethod
    def unpack(self, packed_BM: Tensor) -> Tensor:
        """Return packed rows as float32 (B×K)."""

    def read_packed(self, index_B: Tensor) -> Tensor:
        """Return these rows on `device`. The index may be on the host, which saves waiting if the table is."""
        if not self._on_host:
            return self.table_NM.index_select(0, to_device(index_B, self.device))
        index_B = index_B.cpu()
        waited_for = any(bool(torch.isin(index_B, own_B).any()) for own_B, _ in self._returning)
        self._store_returned(wait=waited_for)
        return to_device(self.table_NM.index_select(0, index_B), self.device)

    def write_packed(self, index_B: Tensor, packed_BM: Tensor) -> None:
        self.writes += 1
        if self._on_host:
            self._returning.append((index_B.cpu(), Arriving([packed_BM.contiguous()])))
            self._store_returned()
        else:
            self._copy(to_device(index_B, self.device), packed_BM.contiguous())

    def _copy(self, index_B: Tensor, packed_BM: Tensor) -> None:
        self._wide.index_copy_(0, index_B, packed_BM.view(self._wide.dtype))

    def _store_returned(self, *, wait: bool = False) -> None:
        """Store the rows that have arrived from the device, or all of them."""
        while self._returning and (wait or self._returning[0][1].arrived):
            index_B, arriving = self._returning.popleft()
            self._copy(index_B, *arriving.wait())

    def _known(self, index_B: Tensor) -> Tensor:
        """Return the same positions on the host, if the table is there and they are known."""
        return self.dealt.own if self._on_host and self.dealt is not None else index_B

    def read(self, index_B: Tensor) -> Tensor:
        return self.unpack(self.read_packed(self._known(index_B)))

    def write(self, index_B: Tensor, rows_BK: Tensor, valid_B1: Tensor | None = None) -> Tensor:
        packed_BM, known_B = self.pack(index_B, rows_BK), self._known(index_B)
        kept_BM = packed_BM if valid_B1 is None else torch.where(valid_B1, packed_BM, self.read_packed(known_B))
        self.write_packed(known_B, kept_BM)
        return self.unpack(packed_BM)

    def fill(self, index_n: Tensor, rows_nK: Tensor) -> None:
        self.write(index_n, rows_nK)

    def state_dict(self) -> dict[str, Tensor]:
        self._store_returned(wait=True)
        return {"rows": self.table_NM, "writes": torch.tensor(self.writes)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        missing = [name for name in ("rows", "writes") if name not in state]
        if missing:
            raise ValueError(f"this is not the state of a target store: {' and '.join(missing)} missing")
        saved_NM = state["rows"]
        if saved_NM.shape != self.table_NM.shape or saved_NM.dtype != self.table_NM.dtype:
            raise ValueError(
                f"the saved targets are {tuple(saved_NM.shape)} {saved_NM.dtype}, but this store holds "
                f"{tuple(self.table_NM.shape)} {self.table_NM.dtype}; create the store with the samples, classes and "
                "format of the saved one"
            )
        if saved_NM.is_floating_point() and not all(bound.isfinite() for bound in saved_NM.aminmax()):
            raise ValueError("the saved targets contain NaN or infinity; load another checkpoint")
        writes = int(state["writes"])
        self._store_returned(wait=True)
        self.table_NM.copy_(saved_NM)
        self.writes = writes


class DenseRows(PackedRows):
    """Every number of every row, as float32 or float16, in one tensor.

    float16 rows use stochastic rounding, which preserves the mean. Rounding to nearest would freeze a slow target: at
    momentum 0.99 a step of (1 - 0.99) (p - t) is often less than half a unit in the last place and would be lost.
    """

    def __init__(self, values_NK: Tensor, device: torch.device | None = None) -> None:
        if values_NK.dtype not in (torch.float32, torch.float16):
            raise ValueError(f"rows are stored as float32 or float16, not {values_NK.dtype}")
        super().__init__(values_NK, values_NK.shape[1], device)

    @classmethod
    def from_file(
        cls, path: Path, num_rows: int, num_columns: int, dtype: torch.dtype, device: torch.device
    ) -> "DenseRows":
        """Map a new file of zeros. Its space is reserved, so that a full disk fails here and not during training."""
        size = num_rows * num_columns
        try:
            with open(path, "wb") as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size * dtype.itemsize)
                else:  # not on macOS, where the file grows as it is written
                    os.truncate(file.fileno(), size * dtype.itemsize)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise UserError(
                f"cannot reserve {size * dtype.itemsize:,} bytes for the targets in {path}: {error.strerror}; "
                "free some space or choose another folder"
            ) from error
        table_NK = torch.from_file(str(path), shared=True, size=size, dtype=dtype).view(num_rows, num_columns)
        rows = cls(table_NK, device)
        rows.in_file = True
        return rows

    def move(self, index_B: Tensor, towards_BK: Tensor, share: float, valid_B1: Tensor | None = None) -> Tensor:
        """Do the same in three calls: with few classes the number of calls determines the cost."""
        if not self.exact or valid_B1 is not None or self._on_host:
            return super().move(index_B, towards_BK, share, valid_B1)
        rows_BK = self.table_NM.index_select(0, index_B).lerp_(towards_BK, share)
        self._wide.index_copy_(0, index_B, rows_BK.view(self._wide.dtype))
        self.writes += 1
        return rows_BK

    def pack(self, index_B: Tensor, rows_BK: Tensor) -> Tensor:
        if self.exact:
            return rows_BK
        bits_BK = rows_BK.contiguous().view(torch.int32) + rounding_draws(self, index_B)
        return (bits_BK & -_STEPS).view(torch.float32).half()

    def unpack(self, packed_BM: Tensor) -> Tensor:
        return packed_BM.float()


def rounding_draws(rows: PackedRows, index_B: Tensor) -> Tensor:
    """Draw integers in 0..2^13 - 1 for stochastic rounding (B×K).

    They depend only on the number of writes so far, the row and the column, so that a resumed run and a run over
    several processes round alike.
    """
    generator = torch.Generator().manual_seed(rows.writes)
    column_K = to_device(torch.randint(_STEPS, (rows.num_columns,), generator=generator), index_B.device)
    row_B = (index_B * _GOLDEN_RATIO) >> _DROPPED_BITS
    return ((column_K + row_B.unsqueeze(1)) % _STEPS).to(torch.int32)


def dither(rows: PackedRows, index_B: Tensor) -> Tensor:
    """Draw numbers strictly between 0 and 1 for stochastic rounding (B×K)."""
    return (rounding_draws(rows, index_B).float() + 0.5) / _STEPS


def zeros(
    num_rows: int, num_numbers: int, *, dtype: torch.dtype, device: torch.device, on_host: bool = False
) -> Tensor:
    """Allocate a table on the device, or on the host in pinned memory, from which the device copies by itself."""
    if not on_host:
        return torch.zeros(num_rows, num_numbers, dtype=dtype, device=device)
    return torch.zeros(num_rows, num_numbers, dtype=dtype, pin_memory=copies_from_pinned(device))


def concatenate_bytes(*columns: Tensor) -> Tensor:
    """Concatenate matrices of several number formats as bytes, along the columns."""
    return torch.cat([column.contiguous().view(torch.uint8) for column in columns], 1)


def _as_wide_numbers(rows_NK: Tensor) -> Tensor:
    """View the same memory as fewer, wider numbers where possible: copying rows is then more than twice as fast."""
    if rows_NK.device.type == "cpu" and rows_NK.is_contiguous():
        for wider in (torch.complex128, torch.int64):
            if rows_NK.shape[1] * rows_NK.itemsize % wider.itemsize == 0:
                return rows_NK.view(wider)
    return rows_NK
