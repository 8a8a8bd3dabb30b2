"""Rows for many classes: the k largest entries and their classes; the remaining mass is spread evenly.

A row of K classes takes 6k bytes (8k beyond 32,767 classes) instead of 4K: 48 instead of 4,000 for ImageNet at k = 8.
The spread mass per class never exceeds the k-th entry, so the order of the k entries is preserved.

Shapes: B rows of a batch, N samples, K classes, k entries, M bytes of a packed row.
"""

import torch
from torch import Tensor

from selfadapt.core.errors import UserError
from selfadapt.targets.rows import PackedRows, concatenate_bytes, zeros

_MAX_INT16 = torch.iinfo(torch.int16).max


class TopKRows(PackedRows):
    """Rows that are distributions. A packed row is the bytes of its k largest entries, then those of their classes."""

    def __init__(self, num_rows: int, num_columns: int, k: int, device: torch.device, *, on_host: bool = False) -> None:
        if not 1 <= k < num_columns:
            raise UserError(f"--targets topk:{k} needs 1 to {num_columns - 1} entries for {num_columns} classes")
        self.k = k
        self.class_dtype = torch.int16 if num_columns <= _MAX_INT16 else torch.int32
        values_1k = torch.full((1, k), 1 / num_columns)
        row_1M = concatenate_bytes(values_1k, torch.arange(k, dtype=self.class_dtype)[None])
        table_NM = zeros(num_rows, row_1M.shape[1], dtype=torch.uint8, device=device, on_host=on_host)
        super().__init__(table_NM.copy_(row_1M.to(table_NM.device)), num_columns, device)

    def pack(self, index_B: Tensor, rows_BK: Tensor) -> Tensor:
        values_Bk, classes_Bk = rows_BK.topk(self.k)
        return concatenate_bytes(values_Bk, classes_Bk.to(self.class_dtype))

    def unpack(self, packed_BM: Tensor) -> Tensor:
        values, classes = packed_BM.tensor_split([4 * self.k], 1)
        values_Bk = values.contiguous().view(torch.float32)
        rest_B1 = (1 - values_Bk.sum(1, keepdim=True)).clamp_min_(0) / (self.num_columns - self.k)
        classes_Bk = classes.contiguous().view(self.class_dtype).long()
        return rest_B1.repeat(1, self.num_columns).scatter_(1, classes_Bk, values_Bk)
