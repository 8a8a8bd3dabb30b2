"""Feature rows in a quarter of the memory: int8 values with a float32 scale per row.

Values are rounded stochastically, which preserves the mean, so that slow targets do not freeze.

Shapes: B rows of a batch, N samples, K columns, M bytes of a packed row.
"""

import torch
from torch import Tensor

from selfadapt.targets.rows import PackedRows, concatenate_bytes, dither, zeros

_LARGEST = 127


class Int8Rows(PackedRows):
    """A packed row is its K int8 values and the four bytes of its scale."""

    def __init__(self, num_rows: int, num_columns: int, device: torch.device, *, on_host: bool = False) -> None:
        table_NM = zeros(num_rows, num_columns + 4, dtype=torch.uint8, device=device, on_host=on_host)
        super().__init__(table_NM, num_columns, device)

    def pack(self, index_B: Tensor, rows_BK: Tensor) -> Tensor:
        """Integers stay as they are, because the draws exclude 0 and 1."""
        scale_B1 = rows_BK.abs().amax(1, keepdim=True) / _LARGEST
        scaled_BK = rows_BK / scale_B1.clamp_min(torch.finfo(torch.float32).tiny)
        rounded_BK = (scaled_BK + dither(self, index_B)).floor_().clamp_(-_LARGEST, _LARGEST)
        return concatenate_bytes(rounded_BK.to(torch.int8), scale_B1)

    def unpack(self, packed_BM: Tensor) -> Tensor:
        values_BK, scale_B4 = packed_BM.split([self.num_columns, 4], 1)
        rows_BK: Tensor = values_BK.contiguous().view(torch.int8).float()
        return rows_BK.mul_(scale_B4.contiguous().view(torch.float32))
