"""Labels from a file that replace those of the data."""

import warnings
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from selfadapt.core.array_files import Array, read_array
from selfadapt.core.errors import UserError
from selfadapt.data.dataset import Data, Samples
from selfadapt.data.forms.plain_tables import csv_rows
from selfadapt.data.labels.class_names import check_label_array, check_labels, numbered


@dataclass(frozen=True)
class Suggestions:
    """Labels of a split with every likely error replaced by its suggestion."""

    labels_N: Tensor
    likely_errors: int


def apply_labels(data: Data, path: Path) -> Data:
    """Replace the training labels by those of a file; the previous labels count as the truth.

    A .npy contains one label for each training sample, in order. A .csv has the columns id and label; samples that it
    does not list keep their label.
    """
    check_labels_file(path)
    labels = _npy_labels(data, path) if path.suffix == ".npy" else _csv_labels(data, path)
    return replace(data, train=data.train.with_labels(labels))


def check_labels_file(path: Path) -> None:
    if not path.exists():
        raise UserError(f"there is no file {path}; check --labels")
    if path.suffix not in (".npy", ".csv"):
        raise UserError(f"--labels {path}: give a .npy or a .csv file")


def labels_by_id(path: Path, ids: Sequence[str]) -> Array:
    """Read the labels of these samples, all of which a .csv with the columns id and label must list."""
    found = _read_labels(path, frozenset(ids), ())
    missing = [sample_id for sample_id in ids if sample_id not in found]
    if missing:
        raise UserError(f"{path} lacks the labels of {len(missing)} of {len(ids)} samples, such as {missing[0]!r}")
    return np.array([found[sample_id].label for sample_id in ids])


def labels_in_order(path: Path, count: int) -> Array:
    """Read the labels of all samples from a .npy."""
    labels = _label_array(path)
    if labels.shape != (count,):
        raise UserError(f"{path} contains labels of shape {labels.shape}, but there are {count} samples")
    return labels


def apply_corrected(data: Data, path: Path, *, quiet: bool = False) -> Data:
    """Replace the labels of all splits by those of a table that `selfadapt labels` wrote.

    Samples that the table does not list are removed, except in splits of which it lists none. The previous labels do
    not count as the truth. Warnings report ids that do not match, unless `quiet`.
    """
    known = set(data.ids)
    found = _read_labels(path, known, data.classes)
    removed: list[str] = []

    def correct(samples: Samples) -> Samples:
        kept = [position for position, sample_id in enumerate(samples.ids) if sample_id in found]
        if not kept:
            return samples
        removed.extend(sample_id for sample_id in samples.ids if sample_id not in found)
        taken = samples if len(kept) == len(samples) else samples.take(torch.tensor(kept))
        return replace(taken, labels=_class_indices(path, found, taken.ids, data.classes), truth=None)

    splits = {name: correct(samples) for name, samples in data.splits.items()}
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
    found = _read_labels(path, set(data.ids), data.classes)
    for split, samples in data.splits.items():
        for sample_id in samples.ids:
            wanted = found[sample_id].split if sample_id in found else None
            if (split, wanted) == ("train", "validation") and data.validation is None:
                held_out.add(sample_id)
            elif wanted not in (None, split):
                raise UserError(
                    f"{path}, row {found[sample_id].row}: {sample_id!r} is in the split {wanted!r}, but in {split!r} "
                    "of the data; write the table again from a run on these data"
                )
    labelled = zip(data.train.ids, data.train.labels.tolist(), strict=True)
    remaining = {label for sample_id, label in labelled if sample_id not in held_out}
    lost = [name for k, name in enumerate(data.classes) if k not in remaining]
    if data.num_classes - len(lost) < 2:
        raise UserError(f"{path} leaves fewer than two classes to train on; lost: {', '.join(lost)}")
    if lost:
        warnings.warn(f"{path} leaves no training samples of these classes: {', '.join(lost)}", stacklevel=2)
    return frozenset(held_out)


def suggestions_in(path: Path, samples: Samples, classes: tuple[str, ...]) -> Suggestions | None:
    """Read the suggestions of a corrected table that it did not apply to these samples; None if there are none."""
    known, code = frozenset(samples.ids), {name: k for k, name in enumerate(classes)}
    suggested = {_match(row["id"], known): code.get(row.get("suggested", "")) for row in csv_rows(path, exact=True)}
    given = samples.labels.tolist()
    labels = [k if (own := suggested.get(name)) is None else own for name, k in zip(samples.ids, given, strict=True)]
    changed = sum(label != k for label, k in zip(labels, given, strict=True))
    return Suggestions(torch.tensor(labels), changed) if changed else None


@dataclass(frozen=True)
class _TableLabel:
    label: str
    split: str | None
    row: int


def _read_labels(path: Path, ids: Container[str], classes: Container[str]) -> dict[str, _TableLabel]:
    """Read a .csv with the columns id and label, by id. Spaces around ids and labels are removed unless they match."""
    rows = csv_rows(path, exact=True)
    if not rows or not {"id", "label"} <= set(rows[0]):
        raise UserError(f"{path} must have rows with the columns id and label, as `selfadapt labels` writes them")
    check_labels([row["label"] for row in rows], "label", lambda i: f"{path}, row {i + 2} ({rows[i]['id']})")
    found: dict[str, _TableLabel] = {}
    for number, row in enumerate(rows, start=2):
        entry = _TableLabel(_match(row["label"], classes), row.get("part") or None, number)
        sample_id = _match(row["id"], ids)
        first = found.setdefault(sample_id, entry)
        if first.label != entry.label:
            raise UserError(
                f"{path}: {sample_id!r} is {first.label!r} in row {first.row} but {entry.label!r} in row {number}; "
                "keep one of them"
            )
    return found


def _class_indices(
    path: Path, found: Mapping[str, _TableLabel], ids: Sequence[str], classes: tuple[str, ...]
) -> Tensor:
    labels = [found[sample_id].label for sample_id in ids]
    return numbered(labels, classes, lambda i: f"{path}, row {found[ids[i]].row} ({ids[i]})")


def _label_array(path: Path) -> Array:
    values = read_array(path)
    check_label_array(path, "the array", values)
    if values.dtype.kind not in "iuU":
        raise UserError(f"{path} contains {values.dtype}; labels must be integers or text")
    return values


def _npy_labels(data: Data, path: Path) -> Tensor:
    values = _label_array(path)
    if values.shape != (len(data.train),):
        raise UserError(
            f"{path} contains labels of shape {values.shape}, but the training set has {len(data.train)} samples"
        )
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
    position_of = {sample_id: i for i, sample_id in enumerate(data.train.ids)}
    found = _read_labels(path, position_of, data.classes)
    chosen = [sample_id for sample_id in found if sample_id in position_of]
    if not chosen:
        raise UserError(
            f"{path}: none of its {len(found)} ids is in the training set, such as {next(iter(found))!r}; "
            "use the ids of labels.csv"
        )
    # Tables that `selfadapt labels` wrote list the other splits too.
    unknown = [name for name, entry in found.items() if name not in position_of and entry.split in (None, "train")]
    if unknown:
        warnings.warn(
            f"{path}: {len(unknown)} ids are not in the training set and are ignored, such as {unknown[0]!r}",
            stacklevel=2,
        )
    labels = data.train.labels.clone()
    positions = [position_of[sample_id] for sample_id in chosen]
    labels[positions] = _class_indices(path, found, chosen, data.classes)
    return labels


def _match(value: str, known: Container[str]) -> str:
    """Return the value as it is if it is known, otherwise without leading and trailing spaces."""
    return value if value in known else value.strip()
