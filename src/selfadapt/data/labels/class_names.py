"""Class names and their indices in the network's output, and checks of labels."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfadapt.core.errors import UserError

UNLABELLED = "unlabelled"  # the only class of data without labels
ONE_COLUMN_EACH = "multi-label data are not supported; audit one binary column per label (has it, or not)"
LEAVE_OUT = "leave those samples out"
_SEPARATORS = ";|"
_LONGEST = 1000  # characters of a class name
_NO_LABEL = frozenset({"", "nan", "NaN"})


def class_names(name: str, labels: Sequence[str]) -> tuple[str, ...]:
    """Return the distinct labels in order: numbers by value, other names alphabetically."""
    if not labels:
        raise UserError(f"{name}: there are no training samples")
    names = set(labels)
    several = several_labels(names)
    if several is not None:
        raise UserError(f"{name}: the label {several!r} lists several classes; {ONE_COLUMN_EACH}")
    for label in names:
        if not label.strip() or not label.isprintable():
            raise UserError(f"{name}: {label[:_LONGEST]!r} is not a valid class name; use printable characters")
        if len(label) > _LONGEST:
            raise UserError(
                f"{name}: the label {label[:20]!r}… has {len(label):,} characters; use at most {_LONGEST:,}, and check "
                "that this is the column of labels"
            )
    return tuple(sorted(names, key=int) if all(label.isdecimal() for label in names) else sorted(names))


def numbered(labels: Sequence[str], classes: tuple[str, ...], location: Callable[[int], str]) -> Tensor:
    """Convert labels to class indices; `location` describes where the i-th label was found, for error messages."""
    index = {label: k for k, label in enumerate(classes)}
    for position, label in enumerate(labels):
        if label not in index:
            raise UserError(
                f"{location(position)} has the label {label!r}, which no training sample has; "
                f"the classes are {', '.join(classes[:10])}{', …' if len(classes) > 10 else ''}"
            )
    return torch.tensor([index[label] for label in labels], dtype=torch.int64)


def several_labels(labels: Iterable[str]) -> str | None:
    """Return a label that lists several classes, as in "cat;dog", or None.

    Lists name the same class at different positions. Hierarchical names, as in "tomato|early blight", do not.
    """
    for separator in _SEPARATORS:
        listed = sorted(label for label in labels if separator in label)
        position_of: dict[str, int] = {}
        for label in [*(label for label in labels if separator not in label), *listed] if listed else ():
            for position, name in enumerate(map(str.strip, label.split(separator))):
                if name and position_of.setdefault(name, position) != position:
                    return label
    return None


def is_missing(label: Any) -> bool:
    """Whether a label is missing: None, blank or NaN."""
    return label is None or str(label).strip() in _NO_LABEL


def check_labels(labels: Sequence[Any], name: str, location: Callable[[int], str]) -> None:
    """Raise a UserError if labels are missing or if a sample has several."""
    several = next((i for i, label in enumerate(labels) if isinstance(label, list | tuple | set | dict)), None)
    if several is not None:
        raise UserError(f"{location(several)}: {name} contains {labels[several]}; {ONE_COLUMN_EACH}")
    missing = [i for i, label in enumerate(labels) if is_missing(label)]
    if missing:
        raise UserError(
            f"{location(missing[0])}: {name} is empty, as in {len(missing)} of {len(labels)} rows; {LEAVE_OUT}"
        )


def check_label_array(path: Path, name: str, labels: "np.ndarray[Any, np.dtype[Any]]") -> None:
    """Raise a UserError if labels of an array are missing or if a sample has several."""
    if labels.ndim == 2 and labels.shape[1] > 1:
        raise UserError(f"{path}: {name} has shape {labels.shape}; {ONE_COLUMN_EACH}")
    values = labels.ravel().tolist() if labels.dtype.kind in "fU" else []
    missing = [i for i, label in enumerate(values) if is_missing(label)]
    if missing:
        raise UserError(
            f"{path}: {name}[{missing[0]}] is missing, as are {len(missing)} of {labels.size} labels; {LEAVE_OUT}"
        )
