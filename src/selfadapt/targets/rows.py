"""Where the rows of a target store live: memory of a device, or a memory-mapped file.

Shapes: B rows of a batch, N samples, K columns (classes or features).
"""

import os
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from selfadapt.errors import UserError

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

    def read(self, index_B: Tensor) -> Tensor: ...

    def rounded(self, index_B: Tensor, rows_BK: Tensor) -> Tensor:
        """The rows as `write` would keep them now. Rounding them again changes nothing."""
        ...

    def write(self, index_B: Tensor, rows_BK: Tensor) -> Tensor:
        """Keep the rows and return them as they were kept."""
        ...

    def fill(self, index_n: Tensor, rows_nK: Tensor) -> None:
        """Keep first rows that every process knows, so nothing needs to be sent."""
        ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...


def _in_wide_pieces(rows_NK: Tensor) -> Tensor:
    """The same memory as fewer, wider numbers where a row allows it: copying rows then is more than twice as fast."""
    if rows_NK.device.type == "cpu" and rows_NK.is_contiguous():
        for wider in (torch.complex128, torch.int64):
            if rows_NK.shape[1] * rows_NK.itemsize % wider.itemsize == 0:
                return rows_NK.view(wider)
    return rows_NK


def write_rows(table_NK: Tensor, index_B: Tensor, rows_BK: Tensor) -> None:
    """table[index] = rows, in the table's number format."""
    wide = _in_wide_pieces(table_NK)
    wide.index_copy_(0, index_B, rows_BK.to(table_NK.dtype).contiguous().view(wide.dtype))


def matching(saved_NK: Tensor, own_NK: Tensor) -> None:
    """Refuse saved rows of another shape or format than a store's own."""
    if saved_NK.shape != own_NK.shape or saved_NK.dtype != own_NK.dtype:
        raise ValueError(
            f"the saved targets are {tuple(saved_NK.shape)} {saved_NK.dtype}, but this store holds "
            f"{tuple(own_NK.shape)} {own_NK.dtype}; make the store with the same samples, classes and format as the "
            "saved one"
        )


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


class DenseRows:
    """Every number of every row, as float32 or float16, in one tensor.

    A float16 row rounds at random, up or down with the odds that keep the mean. Rounding to the nearest
    would freeze a slow target: at momentum 0.99 a step of (1 - 0.99) (p - t) is often less than half a unit
    in the last place and would be lost each time.
    """

    def __init__(self, values_NK: Tensor) -> None:
        if values_NK.dtype not in (torch.float32, torch.float16):
            raise ValueError(f"rows are kept as float32 or float16, not {values_NK.dtype}")
        self.values_NK = values_NK
        self.num_rows, self.num_columns = values_NK.shape
        self.writes = 0

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
        return cls(flat.view(num_rows, num_columns))

    @property
    def device(self) -> torch.device:
        return self.values_NK.device

    @property
    def nbytes(self) -> int:
        return self.values_NK.nbytes

    def read(self, index_B: Tensor) -> Tensor:
        return self.values_NK.index_select(0, index_B).float()

    def rounded(self, index_B: Tensor, rows_BK: Tensor) -> Tensor:
        if self.values_NK.dtype == torch.float32:
            return rows_BK
        draw_BK = _draws(self.writes, index_B, self.num_columns, rows_BK.device)
        bits_BK = rows_BK.contiguous().view(torch.int32) + draw_BK
        return (bits_BK & -(1 << _DROPPED_BITS)).view(torch.float32).half().float()

    def write(self, index_B: Tensor, rows_BK: Tensor) -> Tensor:
        rows_BK = self.rounded(index_B, rows_BK)
        write_rows(self.values_NK, index_B, rows_BK)
        self.writes += 1
        return rows_BK

    def fill(self, index_n: Tensor, rows_nK: Tensor) -> None:
        self.write(index_n, rows_nK)

    def state_dict(self) -> dict[str, Tensor]:
        return {"values": self.values_NK, "writes": torch.tensor(self.writes)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        matching(state["values"], self.values_NK)
        self.values_NK.copy_(state["values"])
        self.writes = int(state["writes"])
