"""Nested dictionaries and lists of tensors, numbers and text as a flat dictionary of tensors, for files without pickle.

The structure becomes JSON, kept as bytes in a tensor called `structure`, in which a tensor is its number.
"""

import json
from typing import Any

import torch
from torch import Tensor

_STRUCTURE = "structure"


def flatten(value: Any) -> dict[str, Tensor]:
    """Return the tensors of a nested value by number, and its structure."""
    tensors: dict[str, Tensor] = {}

    def encode(part: Any) -> Any:
        if isinstance(part, Tensor):
            number = str(len(tensors))
            tensors[number] = part
            return {"tensor": number} if part.is_contiguous() else {"tensor": number, "stride": part.stride()}
        if isinstance(part, dict):
            return {"pairs": [[key, encode(item)] for key, item in part.items()]}
        if isinstance(part, tuple):
            return {"tuple": [encode(item) for item in part]}
        return [encode(item) for item in part] if isinstance(part, list) else part

    text = json.dumps(encode(value)).encode()
    return {**tensors, _STRUCTURE: torch.frombuffer(bytearray(text), dtype=torch.uint8)}


def unflatten(tensors: dict[str, Tensor]) -> Any:
    """Return the nested value of a flat dictionary.

    Raises:
        ValueError: If it has no valid structure.
    """

    def decode(part: Any) -> Any:
        if isinstance(part, list):
            return [decode(item) for item in part]
        if not isinstance(part, dict):
            return part
        if "pairs" in part:
            return {key: decode(item) for key, item in part["pairs"]}
        if "tuple" in part:
            return tuple(decode(item) for item in part["tuple"])
        tensor = tensors[part["tensor"]]
        if "stride" not in part:
            return tensor
        return torch.empty_strided(tensor.shape, part["stride"], dtype=tensor.dtype).copy_(tensor)

    try:
        return decode(json.loads(bytes(tensors[_STRUCTURE].tolist())))
    except (KeyError, TypeError) as error:
        raise ValueError(f"its structure is damaged ({error!r})") from error
