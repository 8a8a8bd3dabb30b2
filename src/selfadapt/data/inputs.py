"""What a network takes: images or vectors. Everything else is read into one of them.

Shapes: B inputs of a batch, N inputs in all, C channels, H by W pixels, D values of a vector.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor


@dataclass(frozen=True)
class InputSpec:
    """The kind of input and the shape of one: (C, H, W) of an image, (D,) of a vector."""

    kind: Literal["image", "vector"]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> "InputSpec":
        return cls("image" if len(shape) == 3 else "vector", tuple(shape))


class Inputs(Protocol):
    """N inputs of one shape: images read as uint8, or vectors read as float32."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def read(self, index_B: Tensor) -> Tensor:
        """These inputs, one below the other."""
        ...

    def take(self, index_n: Tensor) -> "Inputs":
        """The set that holds these inputs only."""
        ...

    def signature(self) -> bytes:
        """A hash that changes when an input does."""
        ...
