"""Classes and their numbers: what a user calls them, and the place of each in the model's outputs."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from selfadapt.errors import UserError

UNLABELLED = "unlabelled"  # the one class of images without labels


def class_names(name: str, labels: Sequence[str]) -> tuple[str, ...]:
    """The classes in order: numbers by value, words by the alphabet."""
    if not labels:
        raise UserError(f"{name}: there is no training sample")
    words = set(labels)
    for word in words:
        if not word.strip() or not word.isprintable():
            raise UserError(f"{name}: {word!r} cannot be the name of a class; use printable characters")
    return tuple(sorted(words, key=int) if all(word.isdecimal() for word in words) else sorted(words))


def numbered(labels: Sequence[str], classes: tuple[str, ...], place: Callable[[int], str]) -> Tensor:
    """Labels as numbers; `place` says where a label that is no class was found."""
    number = {label: k for k, label in enumerate(classes)}
    for position, label in enumerate(labels):
        if label not in number:
            raise UserError(f"{place(position)} has the label {label!r}, which no training sample has")
    return torch.tensor([number[label] for label in labels], dtype=torch.int64)
