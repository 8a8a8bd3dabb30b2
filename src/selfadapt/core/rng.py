"""Named random streams: each purpose has its own generator, so that draws for one never shift those of another."""

import hashlib

import torch


def seeded(*name: int | str) -> torch.Generator:
    """Return a CPU generator for one purpose, such as `seeded(seed, "order", epoch)`.

    Its state depends only on the name, so a resumed run draws the same numbers as an uninterrupted one.
    """
    return torch.Generator().manual_seed(draw(*name))


def draw(*name: int | str) -> int:
    """Return a 63-bit integer for one purpose, to seed code that does not accept a generator."""
    digest = hashlib.sha256(repr(name).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
