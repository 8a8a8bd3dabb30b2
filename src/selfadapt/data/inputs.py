"""What a model is fed with: images or vectors."""

from dataclasses import dataclass
from typing import Literal

import torch


@dataclass(frozen=True, kw_only=True)
class InputSpec:
    """One input: C×H×W pixels (uint8, 0..1 as float to the model) or D numbers (float32)."""

    kind: Literal["image", "vector"]
    shape: tuple[int, ...]
    dtype: torch.dtype
