"""Where the rows of a target store live: memory of a device, or a memory-mapped file.

Shapes: B rows of a batch, N samples, K columns (classes or features).
"""

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from selfadapt.core.errors import UserError

_SPREAD = 2654435769  # 2^32 by the golden ratio: neighbouring rows get far-apart draws
_DROPPED_BITS = 13  # float32 has 23 bits of mantissa, float16 has 10


class Rows(Protocol):
    """N rows of K numbers that are read and written as float32, however they are kept."""

    num_rows: int
    num_columns: int

    @property
    def device(self) -> torch.device: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def exact(self) -> bool:
        """Whether a row is kept as it is written, to the last bit."""
        ...

    def moved(self, index_B: Tensor, towards_BK: Tensor, share: float) -> Tensor:
        """Move rows this share of the way, and return them as they were kept. They are the caller's to change."""
        ...

    def read(self, index_B: Tensor) -> Tensor: ...

    def write(self, index_B: Tensor, rows_BK: Tensor) -> Tensor:
        """Keep the rows and return them as they were kept."""
        ...

    def fill(self, index_n: Tensor, rows_nK: Tensor) -> None:
        """Keep first rows that every process knows, so nothing needs to be sent."""
        ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...


class PackedRows(ABC):
    """Rows in one table of this process, each packed into M numbers: the form in which it is kept and travels."""

    def __init__(self, table_NM: Tensor, num_columns: int) -> None:
        self.table_NM, self.num_rows, self.num_columns = table_NM, len(table_NM), num_columns
        self._wide = _in_wide_pieces(table_NM)
        self.exact = table_NM.dtype == torch.float32
        self.writes = 0
        self.in_a_file = False

    @abstractmethod
    def packed(self, index_B: Tensor, rows_BK: Tensor) -> Tensor:
        """The rows as `keep` would keep them now (B×M)."""

    @abstractmethod
    def unpacked(self, packed_BM: Tensor) -> Tensor:
        """Packed rows as float32 (B×K)."""

    @property
    def device(self) -> torch.device:
        return self.table_NM.device

    @property
    def nbytes(self) -> int:
        return self.table_NM.nbytes

    def moved(self, index_B: Tensor, towards_BK: Tensor, share: float) -> Tensor:
        return self.write(index_B, self.read(index_B).lerp_(towards_BK, share))

    def take(self, index_B: Tensor) -> Tensor:
        """These rows as they are kept."""
        return self.table_NM.index_select(0, index_B)

    def keep(self, index_B: Tensor, packed_BM: Tensor) -> None:
        self._wide.index_copy_(0, index_B, packed_BM.contiguous().view(self._wide.dtype))
        self.writes += 1

    def read(self, index_B: Tensor) -> Tensor:
        return self.unpacked(self.take(index_B))

    def write(self, index_B: Tensor, rows_BK: Tensor) -> Tensor:
        packed_BM = self.packed(index_B, rows_BK)
        self.keep(index_B, packed_BM)
        return self.unpacked(packed_BM)

    def fill(self, index_n: Tensor, rows_nK: Tensor) -> None:
        self.write(index_n, rows_nK)

    def state_dict(self) -> dict[str, Tensor]:
        return {"rows": self.table_NM, "writes": torch.tensor(self.writes)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        missing = [name for name in ("rows", "writes") if name not in state]
        if missing:
            raise ValueError(f"this is not the state of a store of targets: it has no {' and no '.join(missing)}")
        saved_NM = state["rows"]
        if saved_NM.shape != self.table_NM.shape or saved_NM.dtype != self.table_NM.dtype:
            raise ValueError(
                f"the saved targets are {tuple(saved_NM.shape)} {saved_NM.dtype}, but this store holds "
                f"{tuple(self.table_NM.shape)} {self.table_NM.dtype}; make the store with the same samples, classes "
                "and format as the saved one"
            )
        self.table_NM.copy_(saved_NM)
        self.writes = int(state["writes"])


def side_by_side(*columns: Tensor) -> Tensor:
    """Matrices of several number formats as the bytes of one."""
    return torch.cat([column.contiguous().view(torch.uint8) for column in columns], 1)


def _in_wide_pieces(rows_NK: Tensor) -> Tensor:
    """The same memory as fewer, wider numbers where a row allows it: copying rows then is more than twice as fast."""
    if rows_NK.device.type == "cpu" and rows_NK.is_contiguous():
        for wider in (torch.complex128, torch.int64):
            if rows_NK.shape[1] * rows_NK.itemsize % wider.itemsize == 0:
                return rows_NK.view(wider)
    return rows_NK


def dither(writes: int, index_B: Tensor, num_columns: int, device: torch.device) -> Tensor:
    """Draws between 0 and 1, neither of them included, for rounding at random (B×K).

    They depend on the number of writes so far, the row and the column only, so a resumed run and a run over several
    processes round alike.
    """
    return (_draws(writes, index_B, num_columns, device).float() + 0.5) / (1 << _DROPPED_BITS)


def _draws(writes: int, index_B: Tensor, num_columns: int, device: torch.device) -> Tensor:
    steps = 1 << _DROPPED_BITS
    generator = torch.Generator().manual_seed(writes)
    column_K = torch.randint(steps, (num_columns,), generator=generator).to(device)
    row_B = (index_B * _SPREAD) >> _DROPPED_BITS
    return ((column_K + row_B.unsqueeze(1)) % steps).to(torch.int32)


def _reserve(descriptor: int, num_bytes: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, num_bytes)
    else:  # macOS has no such call; its file grows as it is written
        os.truncate(descriptor, num_bytes)


class DenseRows(PackedRows):
    """Every number of every row, as float32 or float16, in one tensor.

    A float16 row rounds at random, up or down with the odds that keep the mean. Rounding to the nearest
    would freeze a slow target: at momentum 0.99 a step of (1 - 0.99) (p - t) is often less than half a unit
    in the last place and would be lost each time.
    """

    def __init__(self, values_NK: Tensor) -> None:
        if values_NK.dtype not in (torch.float32, torch.float16):
            raise ValueError(f"rows are kept as float32 or float16, not {values_NK.dtype}")
        super().__init__(values_NK, values_NK.shape[1])

    @classmethod
    def in_memory(cls, num_rows: int, num_columns: int, dtype: torch.dtype, device: torch.device) -> "DenseRows":
        return cls(torch.zeros(num_rows, num_columns, dtype=dtype, device=device))

    @classmethod
    def in_file(cls, path: Path, num_rows: int, num_columns: int, dtype: torch.dtype) -> "DenseRows":
        """Rows in a new file of zeros whose space is reserved, so that a full disk is told here and now."""
        size = num_rows * num_columns
        try:
            with open(path, "wb") as file:
                _reserve(file.fileno(), size * dtype.itemsize)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise UserError(
                f"cannot reserve {size * dtype.itemsize:,} bytes for the targets in {path}: {error.strerror}; "
                "free some space or choose another folder"
            ) from error
        flat = torch.from_file(str(path), shared=True, size=size, dtype=dtype)
        rows = cls(flat.view(num_rows, num_columns))
        rows.in_a_file = True
        return rows

    def moved(self, index_B: Tensor, towards_BK: Tensor, share: float) -> Tensor:
        """The same in three calls, which is what it costs when there are few classes."""
        if not self.exact:
            return super().moved(index_B, towards_BK, share)
        rows_BK = self.table_NM.index_select(0, index_B).lerp_(towards_BK, share)
        self._wide.index_copy_(0, index_B, rows_BK.view(self._wide.dtype))
        self.writes += 1
        return rows_BK

    def packed(self, index_B: Tensor, rows_BK: Tensor) -> Tensor:
        if self.exact:
            return rows_BK
        draw_BK = _draws(self.writes, index_B, self.num_columns, rows_BK.device)
        bits_BK = rows_BK.contiguous().view(torch.int32) + draw_BK
        return (bits_BK & -(1 << _DROPPED_BITS)).view(torch.float32).half()

    def unpacked(self, packed_BM: Tensor) -> Tensor:
        return packed_BM.float()
