"""Rows for many classes: the k largest entries and their classes; the rest of the mass is spread evenly.

A row of K classes then takes 6k bytes (8k beyond 32,767 classes) instead of 4K: 48 instead of 4,000 for ImageNet at
k = 8. What is spread is never more than the k-th entry, so the order of the k stays.

Shapes: B rows of a batch, N samples, K classes, k entries.
"""

import torch
from torch import Tensor

from selfadapt.errors import UserError
from selfadapt.targets.rows import matching, write_rows

_MOST_SHORT = torch.iinfo(torch.int16).max


class TopKRows:
    """Rows that are distributions, kept by their largest entries."""

    def __init__(self, num_rows: int, num_columns: int, k: int, device: torch.device) -> None:
        if not 1 <= k < num_columns:
            raise UserError(f"--targets topk:{k} needs 1 to {num_columns - 1} entries for {num_columns} classes")
        self.num_rows, self.num_columns, self.k = num_rows, num_columns, k
        number = torch.int16 if num_columns <= _MOST_SHORT else torch.int32
        self.values_Nk = torch.full((num_rows, k), 1 / num_columns, device=device)
        self.classes_Nk = torch.arange(k, dtype=number, device=device).repeat(num_rows, 1)

    @property
    def device(self) -> torch.device:
        return self.values_Nk.device

    @property
    def nbytes(self) -> int:
        return self.values_Nk.nbytes + self.classes_Nk.nbytes

    def read(self, index_B: Tensor) -> Tensor:
        return self._spread(self.values_Nk.index_select(0, index_B), self.classes_Nk.index_select(0, index_B))

    def rounded(self, index_B: Tensor, rows_BK: Tensor) -> Tensor:
        return self._spread(*rows_BK.topk(self.k))

    def write(self, index_B: Tensor, rows_BK: Tensor) -> Tensor:
        values_Bk, classes_Bk = rows_BK.topk(self.k)
        write_rows(self.values_Nk, index_B, values_Bk)
        write_rows(self.classes_Nk, index_B, classes_Bk)
        return self._spread(values_Bk, classes_Bk)

    def fill(self, index_n: Tensor, rows_nK: Tensor) -> None:
        self.write(index_n, rows_nK)

    def _spread(self, values_Bk: Tensor, classes_Bk: Tensor) -> Tensor:
        rest_B1 = (1 - values_Bk.sum(1, keepdim=True)).clamp_min_(0) / (self.num_columns - self.k)
        return rest_B1.repeat(1, self.num_columns).scatter_(1, classes_Bk.long(), values_Bk)

    def state_dict(self) -> dict[str, Tensor]:
        return {"values": self.values_Nk, "classes": self.classes_Nk}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        matching(state["values"], self.values_Nk)
        self.values_Nk.copy_(state["values"])
        self.classes_Nk.copy_(state["classes"])
