"""Labels from a file that replace those of the data."""

import warnings
from collections.abc import Container
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from selfadapt.core.errors import UserError
from selfadapt.data.dataset import Data, Samples
from selfadapt.data.labels.class_names import check_label_array, check_labels, numbered
from selfadapt.data.tabular.table_file import csv_rows


def apply_labels(data: Data, path: Path) -> Data:
    """Replace the training labels by those of a file; the previous labels count as the truth.

    A .npy contains one label for each training sample, in order. A .csv has the columns id and label; samples that it
    does not list keep their label.
    """
    if not path.exists():
        raise UserError(f"there is no file {path}; check --labels")
    if path.suffix not in (".npy", ".csv"):
        raise UserError(f"--labels {path}: give a .npy or a .csv file")
    labels = _npy_labels(data, path) if path.suffix == ".npy" else _csv_labels(data, path)
    return replace(data, train=data.train.relabelled(labels))


def apply_corrected(data: Data, path: Path, *, quiet: bool = False) -> Data:
    """Replace the labels of all splits by those of a table that `selfadapt labels` wrote.

    Samples that the table does not list are removed, except in splits of which it lists none. The previous labels do
    not count as the truth. Warnings report ids that do not match, unless `quiet`.
    """
    found: dict[str, tuple[str, int]] = {}  # label and row by id
    for number, row in _rows_with_labels(path):
        if row["id"] in found:
            raise UserError(
                f"{path}: the id {row['id']!r} is used in rows {found[row['id']][1]} and {number}; keep one of them"
            )
        found[row["id"]] = row["label"], number
    removed: list[str] = []

    def correct(samples: Samples) -> Samples:
        kept = [position for position, sample_id in enumerate(samples.ids) if sample_id in found]
        if not kept:
            return samples
        removed.extend(sample_id for sample_id in samples.ids if sample_id not in found)
        taken = samples if len(kept) == len(samples) else samples.take(torch.tensor(kept))
        entries = [found[sample_id] for sample_id in taken.ids]
        labels = numbered([label for label, _ in entries], data.classes, lambda i: f"{path}, row {entries[i][1]}")
        return replace(taken, labels=labels, truth=None)

    splits = {name: correct(samples) for name, samples in data.splits.items()}
    known = {sample_id for samples in data.splits.values() for sample_id in samples.ids}
    unknown = [sample_id for sample_id in found if sample_id not in known]
    if len(unknown) == len(found):
        raise UserError(
            f"{path}: none of its {len(found)} ids is in the data, such as {unknown[0]!r}; give the table of these data"
        )
    for ids, problem in ((unknown, "ids are not in the data"), (removed, "samples are not in the table: removed")):
        if ids and not quiet:
            warnings.warn(f"{path}: {len(ids)} {problem}, such as {ids[0]!r}", stacklevel=2)
    return data.with_splits(splits)


def corrected_validation(data: Data, path: Path) -> frozenset[str]:
    """Return the ids of training samples that a corrected table assigns to the validation split.

    The other samples must be in the splits that the table names, and at least two classes must remain for training.
    """
    held_out: set[str] = set()
    rows = enumerate(csv_rows(path, exact=True), start=2)
    splits = {row["id"]: (row["part"], number) for number, row in rows if row.get("part")}
    for split, samples in data.splits.items():
        for sample_id in samples.ids:
            wanted, number = splits.get(sample_id, (split, 0))
            if (split, wanted) == ("train", "validation") and data.validation is None:
                held_out.add(sample_id)
            elif wanted != split:
                raise UserError(
                    f"{path}, row {number}: {sample_id!r} is in the split {wanted!r}, but in {split!r} of the data; "
                    "write the table again from a run on these data"
                )
    labelled = zip(data.train.ids, data.train.labels.tolist(), strict=True)
    remaining = {label for sample_id, label in labelled if sample_id not in held_out}
    lost = [name for k, name in enumerate(data.classes) if k not in remaining]
    if data.num_classes - len(lost) < 2:
        raise UserError(f"{path} leaves fewer than two classes to train on; lost: {', '.join(lost)}")
    if lost:
        warnings.warn(f"{path} leaves no training label of: {', '.join(lost)}", stacklevel=2)
    return frozenset(held_out)


def _rows_with_labels(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Read a .csv with the columns id and label; return row numbers and rows."""
    rows = csv_rows(path, exact=True)
    if not rows or not {"id", "label"} <= set(rows[0]):
        raise UserError(f"{path} must have rows with the columns id and label, as `selfadapt labels` writes them")
    return list(enumerate(rows, start=2))


def _npy_labels(data: Data, path: Path) -> Tensor:
    try:
        values = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"{path} cannot be read as a .npy file: {error}") from error
    check_label_array(path, "the array", values)
    if values.shape != (len(data.train),):
        raise UserError(
            f"{path} contains labels of shape {values.shape}, but the training set has {len(data.train)} samples"
        )
    if values.dtype.kind not in "iuU":
        raise UserError(f"{path} contains {values.dtype}; labels must be integers or text")
    # Classes named by numbers are matched by name, since the numbers need not count from 0.
    if values.dtype.kind == "U" or all(name.isdecimal() for name in data.classes):
        return numbered([str(value) for value in values], data.classes, lambda i: f"{path}, entry {i}")
    wrong = np.flatnonzero((values < 0) | (values >= data.num_classes))
    if wrong.size:
        raise UserError(
            f"{path}: label {values[wrong[0]]} of entry {wrong[0]} is outside 0..{data.num_classes - 1}, as are "
            f"{wrong.size} labels; number the classes from 0 on"
        )
    return torch.from_numpy(values.astype(np.int64))


def _csv_labels(data: Data, path: Path) -> Tensor:
    rows = _rows_with_labels(path)
    check_labels([row["label"] for _, row in rows], "label", lambda i: f"{path}, row {rows[i][0]} ({rows[i][1]['id']})")
    position_of = {sample_id: i for i, sample_id in enumerate(data.train.ids)}
    found: dict[int, tuple[str, int]] = {}  # label and row by position
    unknown = []
    for number, row in rows:
        sample_id = _match(row["id"], position_of)
        label = _match(row["label"], data.classes)
        if sample_id not in position_of:
            if row.get("part", "train") == "train":  # tables that `selfadapt labels` wrote list other splits too
                unknown.append(sample_id)
            continue
        previous, first = found.setdefault(position_of[sample_id], (label, number))
        if previous != label:
            raise UserError(
                f"{path}: {sample_id!r} is {previous!r} in row {first} but {label!r} in row {number}; keep one of them"
            )
    if not found:
        raise UserError(
            f"{path}: none of its {len(rows)} ids is in the training set, such as {rows[0][1]['id']!r}; "
            "use the ids of labels.csv"
        )
    if unknown:
        warnings.warn(
            f"{path}: {len(unknown)} ids are not in the training set and are ignored, such as {unknown[0]!r}",
            stacklevel=2,
        )
    entries = list(found.values())
    labels = data.train.labels.clone()
    labels[torch.tensor(list(found))] = numbered(
        [label for label, _ in entries], data.classes, lambda i: f"{path}, row {entries[i][1]}"
    )
    return labels


def _match(value: str, known: Container[str]) -> str:
    """Return the value as it is if it is known, otherwise without leading and trailing spaces."""
    return value if value in known else value.strip()
