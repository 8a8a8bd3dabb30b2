"""Training labels from a file, in place of those that the data bring."""

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
    wrong = np.flatnonzero((values < 0) | (values >= data.num_classes))
    if wrong.size:
        raise UserError(
            f"{path}: label {values[wrong[0]]} of entry {wrong[0]} is outside 0..{data.num_classes - 1}; "
            f"{wrong.size} labels are"
        )
    return torch.from_numpy(values.astype(np.int64))


def _csv_labels(data: Data, path: Path) -> Tensor:
    rows = csv_rows(path)
    if not rows or not {"id", "label"} <= set(rows[0]):
        raise UserError(f"{path} must have rows with the columns id and label")
    position = {sample_id: i for i, sample_id in enumerate(data.train.ids)}
    labels = data.train.labels.clone()
    known = [row for row in rows if row["id"] in position]
    if not known:
        raise UserError(f"{path}: none of its {len(rows)} ids is in the training set, such as {rows[0]['id']!r}")
    values = numbered([str(row["label"]) for row in known], data.classes, lambda i: f"{path}: id {known[i]['id']}")
    labels[torch.tensor([position[row["id"]] for row in known])] = values
    return labels
