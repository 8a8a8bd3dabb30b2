"""Attributes that have another value for a while."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def temporarily(owners: Iterable[Any], name: str, value: Any) -> Iterator[None]:
    """Give an attribute of these objects another value within a block."""
    before = [(owner, getattr(owner, name)) for owner in owners]
    for owner, _ in before:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, own in before:
            setattr(owner, name, own)
