"""Labels from a file, in place of those that the data bring."""

import warnings
from collections.abc import Container
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from selfadapt.core.errors import UserError
from selfadapt.data.dataset import Data, Samples
from selfadapt.data.labels.class_names import check_labels, numbered
from selfadapt.data.sources.arrays import check_label_array
from selfadapt.data.tabular.table_file import csv_rows


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


def apply_corrected(data: Data, path: Path, *, quiet: bool = False) -> Data:
    """The data with the labels of a table that `selfadapt labels` wrote, in every part; what it leaves out is left out.

    The labels that the data had count for nothing. A part of which the table holds nothing stays as it is. It is told
    what does not fit together, unless `quiet`.
    """
    rows = csv_rows(path, exact=True)
    if not rows or not {"id", "label"} <= set(rows[0]):
        raise UserError(f"{path} must have rows with the columns id and label, as `selfadapt labels` writes them")
    lines: dict[str, tuple[str, int]] = {}
    for line, row in enumerate(rows, start=2):
        if row["id"] in lines:
            raise UserError(f"{path}: {row['id']!r} stands in lines {lines[row['id']][1]} and {line}; keep one of them")
        lines[row["id"]] = row["label"] or "", line
    left_out: list[str] = []

    def corrected(samples: Samples) -> Samples:
        chosen = [place for place, sample_id in enumerate(samples.ids) if sample_id in lines]
        if not chosen:
            return samples
        left_out.extend(sample_id for sample_id in samples.ids if sample_id not in lines)
        taken = samples if len(chosen) == len(samples) else samples.take(torch.tensor(chosen))
        found = [lines[sample_id] for sample_id in taken.ids]
        labels = numbered([label for label, _ in found], data.classes, lambda i: f"{path}, line {found[i][1]}")
        return replace(taken, labels=labels, truth=None)  # what the data say is no longer known to be right

    parts = {name: corrected(samples) for name, samples in data.splits.items()}
    known = {sample_id for samples in data.splits.values() for sample_id in samples.ids}
    strangers = [sample_id for sample_id in lines if sample_id not in known]
    if len(strangers) == len(lines):
        raise UserError(f"{path}: none of its {len(rows)} ids is in the data, such as {strangers[0]!r}")
    for some, words in ((strangers, "ids are not in the data"), (left_out, "samples are not in it and are left out")):
        if some and not quiet:
            warnings.warn(f"{path}: {len(some)} {words}, such as {some[0]!r}", stacklevel=2)
    return data.with_splits(parts)


def corrected_validation(data: Data, path: Path) -> frozenset[str]:
    """The training samples that a corrected table has in its validation part; empty if it has none, or no parts.

    The other samples must be in the parts that the table names, and two classes must be left to train on.
    """
    held_out: set[str] = set()
    rows = enumerate(csv_rows(path, exact=True), start=2)
    parts = {row["id"]: (row["part"], line) for line, row in rows if row.get("part")}
    for part, samples in data.splits.items():
        for sample_id in samples.ids:
            wanted, line = parts.get(sample_id, (part, 0))
            if (part, wanted) == ("train", "validation") and data.validation is None:
                held_out.add(sample_id)
            elif wanted != part:
                raise UserError(
                    f"{path}, line {line}: {sample_id!r} is in part {wanted!r} but in {part!r} of the data; "
                    "make the table anew from a run on these data"
                )
    labelled = zip(data.train.ids, data.train.labels.tolist(), strict=True)
    found = {label for sample_id, label in labelled if sample_id not in held_out}
    lost = [name for k, name in enumerate(data.classes) if k not in found]
    if data.num_classes - len(lost) < 2:
        raise UserError(f"{path} leaves fewer than two classes to train on; lost: {', '.join(lost)}")
    if lost:
        warnings.warn(f"{path} leaves no training label of: {', '.join(lost)}", stacklevel=2)
    return frozenset(held_out)


def _npy_labels(data: Data, path: Path) -> Tensor:
    try:
        values = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"{path} cannot be read as a .npy file: {error}") from error
    check_label_array(path, "the array", values)
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
    check_labels([row["label"] for row in rows], "label", lambda i: f"{path}, line {i + 2}")
    position = {sample_id: i for i, sample_id in enumerate(data.train.ids)}
    given: dict[int, tuple[str, int]] = {}
    strangers = []
    for line, row in enumerate(rows, start=2):
        sample_id = _known(row["id"] or "", position)
        label = _known(row["label"] or "", data.classes)
        if sample_id not in position:
            if row.get("part", "train") == "train":  # tables that `selfadapt labels` wrote hold other parts, too
                strangers.append(sample_id)
            continue
        place = position[sample_id]
        if place in given and given[place][0] != label:
            raise UserError(f"{path}: {sample_id!r} has one label in line {given[place][1]} and another in line {line}")
        given[place] = label, line
    if not given:
        raise UserError(f"{path}: none of its {len(rows)} ids is in the training set, such as {rows[0]['id']!r}")
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
