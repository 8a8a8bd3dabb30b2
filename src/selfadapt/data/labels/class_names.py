"""Classes and their numbers: what a user calls them, and the place of each in the model's outputs."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from selfadapt.core.errors import UserError

UNLABELLED = "unlabelled"  # the one class of images without labels
ONE_COLUMN_EACH = "multi-label data are not supported; audit one binary column per label (has it, or not)"
LEAVE_OUT = "leave those samples out"
_SEPARATORS = ";|"
_NO_LABEL = frozenset({"", "nan", "NaN"})


def class_names(name: str, labels: Sequence[str]) -> tuple[str, ...]:
    """The classes in order: numbers by value, words by the alphabet."""
    if not labels:
        raise UserError(f"{name}: there is no training sample")
    words = set(labels)
    several = several_labels(words)
    if several is not None:
        raise UserError(f"{name}: the label {several!r} names several classes; {ONE_COLUMN_EACH}")
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


def several_labels(words: Iterable[str]) -> str | None:
    """One of these labels that lists several, as in "cat;dog"; None if there is none.

    Lists name one class in different places. A name of levels, as in "tomato|early blight", has a place for each.
    """
    for separator in _SEPARATORS:
        listed = sorted(word for word in words if separator in word)
        place: dict[str, int] = {}
        for word in [*(own for own in words if separator not in own), *listed] if listed else ():
            for position, piece in enumerate(map(str.strip, word.split(separator))):
                if piece and place.setdefault(piece, position) != position:
                    return word
    return None


def is_missing(label: Any) -> bool:
    """Whether a cell of a table holds no label: nothing, blanks or NaN."""
    return label is None or str(label).strip() in _NO_LABEL


def check_labels(labels: Sequence[Any], name: str, place: Callable[[int], str]) -> None:
    """Refuse labels that are missing, or several for one sample; `place` says where a label was found."""
    several = next((i for i, label in enumerate(labels) if isinstance(label, list | tuple | set | dict)), None)
    if several is not None:
        raise UserError(f"{place(several)}: {name} holds {labels[several]}; {ONE_COLUMN_EACH}")
    missing = [i for i, label in enumerate(labels) if is_missing(label)]
    if missing:
        raise UserError(
            f"{place(missing[0])}: {name} is empty, as in {len(missing)} of {len(labels)} rows; {LEAVE_OUT}"
        )
