"""Rows of features in a quarter of the memory: whole numbers from -127 to 127, with a scale for each row.

Numbers are rounded at random, up or down with the odds that keep the mean, so that slow targets do not freeze.

Shapes: B rows of a batch, N samples, K columns.
"""

import torch
from torch import Tensor

from selfadapt.targets.rows import dither, matching, write_rows

_LARGEST = 127


class Int8Rows:
    def __init__(self, num_rows: int, num_columns: int, device: torch.device) -> None:
        self.num_rows, self.num_columns = num_rows, num_columns
        self.values_NK = torch.zeros(num_rows, num_columns, dtype=torch.int8, device=device)
        self.scale_N = torch.zeros(num_rows, device=device)
        self.writes = 0

    @property
    def device(self) -> torch.device:
        return self.values_NK.device

    @property
    def nbytes(self) -> int:
        return self.values_NK.nbytes + self.scale_N.nbytes

    def read(self, index_B: Tensor) -> Tensor:
        return self.values_NK.index_select(0, index_B).float().mul_(self.scale_N.index_select(0, index_B).unsqueeze(1))

    def rounded(self, index_B: Tensor, rows_BK: Tensor) -> Tensor:
        values_BK, scale_B = self._whole_numbers(index_B, rows_BK)
        return values_BK * scale_B.unsqueeze(1)

    def write(self, index_B: Tensor, rows_BK: Tensor) -> Tensor:
        values_BK, scale_B = self._whole_numbers(index_B, rows_BK)
        write_rows(self.values_NK, index_B, values_BK)
        self.scale_N.index_copy_(0, index_B, scale_B)
        self.writes += 1
        return values_BK * scale_B.unsqueeze(1)

    def fill(self, index_n: Tensor, rows_nK: Tensor) -> None:
        self.write(index_n, rows_nK)

    def _whole_numbers(self, index_B: Tensor, rows_BK: Tensor) -> tuple[Tensor, Tensor]:
        """As floats. What was whole before stays: the draws keep away from 0 and 1."""
        scale_B = rows_BK.abs().amax(1) / _LARGEST
        share_BK = rows_BK / scale_B.clamp_min(torch.finfo(torch.float32).tiny).unsqueeze(1)
        draw_BK = dither(self.writes, index_B, self.num_columns, rows_BK.device)
        return (share_BK + draw_BK).floor_().clamp_(-_LARGEST, _LARGEST), scale_B

    def state_dict(self) -> dict[str, Tensor]:
        return {"values": self.values_NK, "scale": self.scale_N, "writes": torch.tensor(self.writes)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        matching(state["values"], self.values_NK)
        self.values_NK.copy_(state["values"])
        self.scale_N.copy_(state["scale"])
        self.writes = int(state["writes"])
