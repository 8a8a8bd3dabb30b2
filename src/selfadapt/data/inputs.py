"""The inputs of a network: images or vectors. Tables and texts are encoded as vectors.

Shapes: B inputs of a batch, N inputs in total, C channels, H by W pixels, D values of a vector.
"""

import hashlib
from dataclasses import dataclass
from typing import Literal, Protocol, Self

import torch
from torch import Tensor

from selfadapt.core.device import to_device

InputKind = Literal["images", "vectors"]


@dataclass(frozen=True)
class InputSpec:
    """The kind of input and the shape of one: (C, H, W) for images, (D,) for vectors."""

    kind: InputKind
    shape: tuple[int, ...]

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> "InputSpec":
        """Derive the kind from a stored shape. Where `Inputs` are available, use their `kind` instead."""
        return cls("images" if len(shape) == 3 else "vectors", tuple(shape))


class Inputs(Protocol):
    """N inputs of one shape: images (uint8) or vectors (float32)."""

    @property
    def kind(self) -> InputKind: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input: (C, H, W) for images, (D,) for vectors."""
        ...

    def __len__(self) -> int: ...

    def read(self, index_B: Tensor) -> Tensor:
        """Return the inputs at these positions, stacked along the first dimension."""
        ...

    def take(self, index_n: Tensor) -> "Inputs":
        """Return a view or copy that contains only the inputs at these positions."""
        ...

    def signature(self) -> bytes:
        """Return a hash that changes whenever an input changes."""
        ...


@dataclass(frozen=True)
class TensorInputs:
    """Inputs in one tensor, in memory or memory-mapped."""

    values: Tensor

    def __len__(self) -> int:
        return len(self.values)

    def read(self, index_B: Tensor) -> Tensor:
        return self.values.index_select(0, to_device(index_B, self.values.device))

    def take(self, index_n: Tensor) -> Self:
        first, size = int(index_n[0]) if len(index_n) else 0, len(index_n)
        if bool((index_n == torch.arange(first, first + size)).all()):  # consecutive inputs need no copy
            return type(self)(self.values[first : first + size])
        return type(self)(self.values[index_n])

    def signature(self) -> bytes:
        digest = hashlib.sha256()
        for block in self.values.split(4096):
            digest.update(block.contiguous().numpy().data)
        return digest.digest()
