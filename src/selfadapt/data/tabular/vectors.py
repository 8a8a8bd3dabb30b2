"""Vectors as data, and how they come from an .npz of floats.

Shapes: N samples, D values of each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic
from torch import Tensor

from selfadapt.core.errors import UserError
from selfadapt.data.dataset import Data, Samples
from selfadapt.data.images.storage import content, taken
from selfadapt.data.labels.class_names import numbered
from selfadapt.data.sources.arrays import Array, array_classes, content_ids, part_arrays, read_arrays, read_unlabelled


@dataclass(frozen=True)
class VectorInputs:
    """One float32 tensor of vectors."""

    values_ND: Tensor

    @property
    def shape(self) -> tuple[int]:
        return (self.values_ND.shape[1],)

    def __len__(self) -> int:
        return len(self.values_ND)

    def read(self, index_B: Tensor) -> Tensor:
        return self.values_ND.index_select(0, index_B.to(self.values_ND.device))

    def take(self, index_n: Tensor) -> "VectorInputs":
        return VectorInputs(taken(self.values_ND, index_n))

    def signature(self) -> bytes:
        return content(self.values_ND)


def is_vectors(path: Path) -> bool:
    """Whether the arrays of an .npz are meant as vectors, not as images, by the head of x_train alone."""
    try:
        with ZipFile(path) as archive, archive.open("x_train.npy") as file:
            read_head = {(1, 0): read_array_header_1_0, (2, 0): read_array_header_2_0}[read_magic(file)]
            shape, _, dtype = read_head(file)
    except (ValueError, OSError, EOFError, BadZipFile, KeyError):
        return False  # whoever reads it will say what is wrong
    return bool(dtype.kind == "f" and len(shape) == 2)


def vector_arrays(path: Path, *, unlabelled: bool = False) -> Data:
    """An .npz file with float x_train of N×D and y_train, optionally x_val, y_val, x_test, y_test.

    The values are taken as they are: scaling, where the columns need it, is the user's. An id is a hash of the vector,
    unless there is id_train and so on, as `selfadapt embed` writes them.
    """
    found = read_arrays(path, unlabelled=unlabelled)
    classes = array_classes(path, found["y_train"])
    width = found["x_train"].shape[-1] if found["x_train"].ndim else 0

    def part(name: str) -> Samples | None:
        both = part_arrays(path, found, name)
        if both is None or not both[0].size:
            return None
        values, labels = both
        _check_vectors(path, f"x_{name}", values, width)
        return vector_samples(
            values,
            numbered([str(label) for label in labels], classes, lambda i: f"{path}: y_{name}[{i}]"),
            _given_ids(path, found, name, len(labels)) or content_ids(name, values),
            [f"x_{name}[{i}]" for i in range(len(labels))],
        )

    train = part("train")
    if train is None:
        raise UserError(f"{path}: x_train is empty")
    return Data(name=path.stem, classes=classes, train=train, validation=part("val"), test=part("test"), augment="none")


def _given_ids(path: Path, found: Mapping[str, Array], name: str, count: int) -> list[str] | None:
    if f"id_{name}" not in found:
        return None
    ids = [str(own) for own in found[f"id_{name}"].reshape(-1)]
    if len(ids) != count or len(set(ids)) != count:
        raise UserError(
            f"{path}: id_{name} holds {len(ids)} ids, {len(set(ids))} of them different, for {count} vectors; give "
            "each one of its own, or leave the array out"
        )
    return ids


def read_vectors(path: Path, width: int) -> VectorInputs:
    """Vectors without labels: an .npy of N×D floats, or an .npz that holds them as `x`."""
    values = read_unlabelled(path)
    _check_vectors(path, "x", values, width)
    return VectorInputs(torch.from_numpy(np.ascontiguousarray(values, np.float32)))


def _check_vectors(path: Path, name: str, values: Array, width: int) -> None:
    if values.dtype.kind != "f" or values.ndim != 2:
        raise UserError(
            f"{path}: {name} is {values.dtype} of shape {values.shape}; vectors must be float of shape N×D, and images "
            "uint8 of shape N×H×W or N×H×W×C"
        )
    if values.shape[1] != width:
        raise UserError(f"{path}: {name} holds vectors of {values.shape[1]} values, but x_train had {width}")
    with np.errstate(over="ignore"):  # what is too large is told below
        wrong = np.argwhere(~np.isfinite(values.astype(np.float32)))
    if len(wrong):
        row, column = wrong[0].tolist()
        rows = len(np.unique(wrong[:, 0]))
        raise UserError(
            f"{path}: {name}[{row}, {column}] is {values[row, column]}, which is no finite float32; "
            f"{rows} row{'s have' if rows > 1 else ' has'} such values"
        )


def vector_samples(values: Array, labels: Tensor, ids: Sequence[str], places: Sequence[str]) -> Samples:
    """Samples over vectors of N×D; places say where each came from."""
    inputs = VectorInputs(torch.from_numpy(np.ascontiguousarray(values, np.float32)))
    return Samples(inputs=inputs, labels=labels, truth=None, ids=ids, paths=places)
