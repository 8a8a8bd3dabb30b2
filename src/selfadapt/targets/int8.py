"""Rows of features in a quarter of the memory: whole numbers from -127 to 127, with a scale for each row.

Numbers are rounded at random, up or down with the odds that keep the mean, so that slow targets do not freeze.

Shapes: B rows of a batch, N samples, K columns.
"""

import torch
from torch import Tensor

from selfadapt.targets.rows import PackedRows, dither, side_by_side

_LARGEST = 127


class Int8Rows(PackedRows):
    """A packed row is its K whole numbers and the four bytes of its scale."""

    def __init__(self, num_rows: int, num_columns: int, device: torch.device) -> None:
        super().__init__(torch.zeros(num_rows, num_columns + 4, dtype=torch.uint8, device=device), num_columns)

    def packed(self, index_B: Tensor, rows_BK: Tensor) -> Tensor:
        """What was whole before stays: the draws keep away from 0 and 1."""
        scale_B1 = rows_BK.abs().amax(1, keepdim=True) / _LARGEST
        share_BK = rows_BK / scale_B1.clamp_min(torch.finfo(torch.float32).tiny)
        draw_BK = dither(self.writes, index_B, self.num_columns, rows_BK.device)
        whole_BK = (share_BK + draw_BK).floor_().clamp_(-_LARGEST, _LARGEST)
        return side_by_side(whole_BK.to(torch.int8), scale_B1)

    def unpacked(self, packed_BM: Tensor) -> Tensor:
        whole_BK, scale_B4 = packed_BM.split([self.num_columns, 4], 1)
        scale_B1 = scale_B4.contiguous().view(torch.float32)
        rows_BK: Tensor = whole_BK.contiguous().view(torch.int8).float()
        return rows_BK.mul_(scale_B1)
