"""Random streams that are named, not shared: what is drawn for one purpose never shifts another."""

import hashlib

import torch


def seeded(*name: int | str) -> torch.Generator:
    """A generator for this purpose alone, such as `seeded(seed, "order", epoch)`.

    It depends on nothing but its name, so a resumed run draws what the whole run would have drawn.
    """
    return torch.Generator().manual_seed(draw(*name))


def draw(*name: int | str) -> int:
    """A whole number of 63 bits for this purpose alone, to seed what takes no generator."""
    digest = hashlib.sha256(repr(name).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
