"""Vectors in memory.

Shapes: N vectors, D values of each.
"""

from typing import ClassVar

from selfadapt.data.inputs import InputKind, TensorInputs


class VectorInputs(TensorInputs):
    """Vectors in one float32 tensor."""

    kind: ClassVar[InputKind] = "vectors"

    @property
    def shape(self) -> tuple[int]:
        return (self.values.shape[1],)
