"""Rows for many classes: the k largest entries and their classes; the rest of the mass is spread evenly.

A row of K classes then takes 6k bytes (8k beyond 32,767 classes) instead of 4K: 48 instead of 4,000 for ImageNet at
k = 8. What is spread is never more than the k-th entry, so the order of the k stays.

Shapes: B rows of a batch, N samples, K classes, k entries.
"""

import torch
from torch import Tensor

from selfadapt.core.errors import UserError
from selfadapt.targets.rows import PackedRows, side_by_side

_MOST_SHORT = torch.iinfo(torch.int16).max


class TopKRows(PackedRows):
    """Rows that are distributions. A packed row is the bytes of its k largest entries, then those of their classes."""

    def __init__(self, num_rows: int, num_columns: int, k: int, device: torch.device) -> None:
        if not 1 <= k < num_columns:
            raise UserError(f"--targets topk:{k} needs 1 to {num_columns - 1} entries for {num_columns} classes")
        self.k = k
        self.number = torch.int16 if num_columns <= _MOST_SHORT else torch.int32
        first_1M = side_by_side(
            torch.full((1, k), 1 / num_columns, device=device), torch.arange(k, dtype=self.number, device=device)[None]
        )
        super().__init__(first_1M.repeat(num_rows, 1), num_columns)

    def packed(self, index_B: Tensor, rows_BK: Tensor) -> Tensor:
        values_Bk, classes_Bk = rows_BK.topk(self.k)
        return side_by_side(values_Bk, classes_Bk.to(self.number))

    def unpacked(self, packed_BM: Tensor) -> Tensor:
        values, classes = packed_BM.tensor_split([4 * self.k], 1)
        values_Bk = values.contiguous().view(torch.float32)
        rest_B1 = (1 - values_Bk.sum(1, keepdim=True)).clamp_min_(0) / (self.num_columns - self.k)
        classes_Bk = classes.contiguous().view(self.number).long()
        return rest_B1.repeat(1, self.num_columns).scatter_(1, classes_Bk, values_Bk)
