"""Training labels from a file, in place of those that the data bring."""

import warnings
from collections.abc import Container
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from selfadapt.data.classes import numbered
from selfadapt.data.samples import Data
from selfadapt.data.table import csv_rows
from selfadapt.errors import UserError


def apply_labels(data: Data, path: Path) -> Data:
    """The data with the training labels of a file: .npy in the order of the training set, or .csv with id and label.

    The labels that the data had count as the truth. A sample that a .csv leaves out keeps its label.
    """
    if not path.exists():
        raise UserError(f"there is no file {path}")
    if path.suffix == ".npy":
        labels = _npy_labels(data, path)
    elif path.suffix == ".csv":
        labels = _csv_labels(data, path)
    else:
        raise UserError(f"--labels {path}: give a .npy or a .csv file")
    return replace(data, train=data.train.relabelled(labels))


def _npy_labels(data: Data, path: Path) -> Tensor:
    try:
        values = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"{path} cannot be read as a .npy file: {error}") from error
    if values.shape != (len(data.train),):
        raise UserError(f"{path} holds labels of shape {values.shape}; the training set has {len(data.train)} samples")
    if values.dtype.kind == "U":
        return numbered(values.tolist(), data.classes, lambda i: f"{path}, entry {i}")
    if values.dtype.kind not in "iu":
        raise UserError(f"{path} holds {values.dtype}; labels must be whole numbers or words")
    if all(name.isdecimal() for name in data.classes):  # classes are called by numbers, which need not count from 0
        return numbered([str(value) for value in values], data.classes, lambda i: f"{path}, entry {i}")
    wrong = np.flatnonzero((values < 0) | (values >= data.num_classes))
    if wrong.size:
        raise UserError(
            f"{path}: label {values[wrong[0]]} of entry {wrong[0]} is outside 0..{data.num_classes - 1}; "
            f"{wrong.size} labels are"
        )
    return torch.from_numpy(values.astype(np.int64))


def _csv_labels(data: Data, path: Path) -> Tensor:
    rows = csv_rows(path, exact=True)
    if not rows or not {"id", "label"} <= set(rows[0]):
        raise UserError(f"{path} must have rows with the columns id and label")
    position = {sample_id: i for i, sample_id in enumerate(data.train.ids)}
    given: dict[int, tuple[str, int]] = {}
    strangers = []
    for line, row in enumerate(rows, start=2):
        sample_id = _known(row["id"] or "", position)
        label = _known(row["label"] or "", data.classes)
        if sample_id not in position:
            strangers.append(sample_id)
            continue
        place = position[sample_id]
        if place in given and given[place][0] != label:
            raise UserError(f"{path}: {sample_id!r} has one label in line {given[place][1]} and another in line {line}")
        given[place] = label, line
    if not given:
        raise UserError(f"{path}: none of its {len(rows)} ids is in the training set, such as {strangers[0]!r}")
    if strangers:
        warnings.warn(
            f"{path}: {len(strangers)} ids are not in the training set and are left out, such as {strangers[0]!r}",
            stacklevel=2,
        )
    places, found = list(given), list(given.values())
    labels = data.train.labels.clone()
    labels[torch.tensor(places)] = numbered(
        [label for label, _ in found], data.classes, lambda i: f"{path}, line {found[i][1]}"
    )
    return labels


def _known(value: str, among: Container[str]) -> str:
    """The value as it stands if it is known, else without the blanks around it."""
    return value if value in among else value.strip()
