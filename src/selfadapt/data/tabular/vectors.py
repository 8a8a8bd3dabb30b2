"""Vectors in memory.

Shapes: N vectors, D values of each.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from selfadapt.data.inputs import InputKind, content_hash, take_rows


@dataclass(frozen=True)
class VectorInputs:
    """Vectors in one float32 tensor."""

    kind: ClassVar[InputKind] = "vectors"
    values_ND: Tensor

    @property
    def shape(self) -> tuple[int]:
        return (self.values_ND.shape[1],)

    def __len__(self) -> int:
        return len(self.values_ND)

    def read(self, index_B: Tensor) -> Tensor:
        return self.values_ND.index_select(0, index_B.to(self.values_ND.device))

    def take(self, index_n: Tensor) -> "VectorInputs":
        return VectorInputs(take_rows(self.values_ND, index_n))

    def signature(self) -> bytes:
        return content_hash(self.values_ND)
