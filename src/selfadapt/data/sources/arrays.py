"""Arrays of images or vectors: .npz files, and .npy files to predict.

Shapes: N samples, C channels, H by W pixels, D values of a vector.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import torch
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic

from selfadapt.core.array_files import Array, read_array, read_arrays
from selfadapt.core.errors import UserError
from selfadapt.data.dataset import Data, Samples
from selfadapt.data.images.storage import TensorImages
from selfadapt.data.labels.class_names import UNLABELLED, check_label_array, class_names, numbered
from selfadapt.data.sample_ids import content_ids
from selfadapt.data.tabular.vectors import VectorInputs

ARRAY_NAMES = {"train": "train", "validation": "val", "test": "test"}  # the ends of their names, by split


def npz_data(path: Path, *, unlabelled: bool = False) -> Data:
    """Open an .npz file with x_train and y_train, optionally x_val, y_val, x_test, y_test.

    Images are uint8 of shape N×H×W or N×H×W×C, vectors are floats of shape N×D, which are used without scaling. An id
    is a hash of the input; for vectors, the arrays id_train, id_val and id_test may give others, as `selfadapt embed`
    writes them.

    Args:
        path: The file.
        unlabelled: Accept a file without y_train; then only x_train is used.

    Raises:
        UserError: An array is missing or invalid.
    """
    arrays = read_npz(path, unlabelled=unlabelled)
    classes = _array_classes(path, arrays["y_train"])
    vectors = _are_vectors(arrays["x_train"].dtype, arrays["x_train"].shape)

    def read_split(name: str) -> Samples | None:
        pair = _inputs_and_labels(path, arrays, name)
        if pair is None or not pair[0].size:
            return None
        values, labels = pair
        inputs = _vectors(path, f"x_{name}", values) if vectors else _images(path, f"x_{name}", values)
        return Samples(
            inputs=inputs,
            labels=numbered([str(label) for label in labels], classes, lambda i: f"{path}: y_{name}[{i}]"),
            ids=(_stored_ids(path, arrays, name) if vectors else None) or content_ids(name, values),
            paths=[f"x_{name}[{i}]" for i in range(len(labels))],
        )

    splits = {split: own for split, name in ARRAY_NAMES.items() if (own := read_split(name)) is not None}
    if "train" not in splits:
        raise UserError(f"{path}: x_train is empty")
    train = splits["train"].inputs
    for split, samples in splits.items():
        if (shape := samples.inputs.shape) != train.shape:
            array = f"x_{ARRAY_NAMES[split]}"
            raise UserError(f"{path}: {array} contains {train.kind} of shape {shape}, but x_train of {train.shape}")
    return Data.of(splits, name=path.stem, classes=classes, augment="none" if vectors else "crop")


def has_vectors(path: Path) -> bool:
    """Whether an .npz contains vectors, judged by the header of x_train without loading the file."""
    try:
        with ZipFile(path) as archive, archive.open("x_train.npy") as file:
            read_header = {(1, 0): read_array_header_1_0, (2, 0): read_array_header_2_0}[read_magic(file)]
            shape, _, dtype = read_header(file)
    except Exception:  # `npz_data` reports what is wrong
        return False
    return _are_vectors(dtype, shape)


def _are_vectors(dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> bool:
    return dtype.kind == "f" and len(shape) == 2


def read_npz(path: Path, *, unlabelled: bool = False) -> dict[str, Array]:
    """Read the arrays of an .npz file, in which x_train and y_train must be."""
    arrays = read_arrays(path)
    if unlabelled and "x_train" in arrays and "y_train" not in arrays:
        arrays = {"x_train": arrays["x_train"], "y_train": np.full(len(arrays["x_train"]), UNLABELLED)}
    if "x_train" not in arrays or "y_train" not in arrays:
        raise UserError(f"{path} contains {sorted(arrays) or 'no arrays'}; it must contain x_train and y_train")
    return arrays


def _array_classes(path: Path, labels: Array) -> tuple[str, ...]:
    check_label_array(path, "y_train", labels)
    if labels.dtype.kind not in "iuU":
        raise UserError(f"{path}: y_train is {labels.dtype}; labels must be integers or text")
    if labels.dtype.kind == "i" and labels.size and labels.min() < 0:
        row = int(labels.argmin())
        raise UserError(f"{path}: y_train[{row}] is {labels.ravel()[row]}; labels must not be negative")
    return class_names(str(path), [str(label) for label in labels.ravel()])


def _inputs_and_labels(path: Path, arrays: Mapping[str, Array], split: str) -> tuple[Array, Array] | None:
    """Return inputs and labels of a split, or None if the file does not contain it."""
    x, y = f"x_{split}", f"y_{split}"
    if x not in arrays and y not in arrays:
        return None
    for name, other in ((x, y), (y, x)):
        if name not in arrays:
            raise UserError(f"{path} contains {other} but not {name}")
    inputs, labels = arrays[x], arrays[y]
    check_label_array(path, y, labels)
    if labels.ndim != 1 or inputs.ndim < 1 or len(labels) != len(inputs):
        size = len(inputs) if inputs.ndim else "no"
        raise UserError(f"{path}: {y} has shape {labels.shape}, but {x} contains {size} samples")
    return inputs, labels


def _stored_ids(path: Path, arrays: Mapping[str, Array], split: str) -> list[str] | None:
    if f"id_{split}" not in arrays:
        return None
    ids, count = [str(sample_id) for sample_id in arrays[f"id_{split}"].reshape(-1)], len(arrays[f"x_{split}"])
    if len(ids) != count or len(set(ids)) != count:
        raise UserError(
            f"{path}: id_{split} contains {len(ids)} ids, {len(set(ids))} of them different, for {count} vectors; give "
            "each vector a unique id, or leave the array out"
        )
    return ids


def read_images(path: Path) -> TensorImages:
    """Read images without labels: an .npy, or an .npz that contains them as `x`."""
    return _images(path, "x", read_array(path, member="x"))


def read_vectors(path: Path, width: int) -> VectorInputs:
    """Read vectors of `width` values without labels: an .npy, or an .npz that contains them as `x`."""
    inputs = _vectors(path, "x", read_array(path, member="x"))
    if inputs.shape != (width,):
        raise UserError(f"{path}: x contains vectors of {inputs.shape[0]} values, but the run was trained on {width}")
    return inputs


def _images(path: Path, name: str, images: Array) -> TensorImages:
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise UserError(
            f"{path}: {name} is {images.dtype} of shape {images.shape}; images must be uint8 of shape N×H×W or "
            "N×H×W×C, and vectors float of shape N×D"
        )
    if images.ndim == 4 and images.shape[3] not in (1, 3, 4):
        raise UserError(
            f"{path}: {name} of shape {images.shape} has {images.shape[3]} channels; the last dimension must be 1, 3 "
            "or 4. If channels come first, use x.transpose(0, 2, 3, 1)"
        )
    channels_last = images if images.ndim == 4 else images[..., None]
    return TensorImages(torch.from_numpy(np.ascontiguousarray(np.moveaxis(channels_last, -1, 1))))


def _vectors(path: Path, name: str, values: Array) -> VectorInputs:
    if not _are_vectors(values.dtype, values.shape):
        raise UserError(f"{path}: {name} is {values.dtype} of shape {values.shape}; vectors must be float of shape N×D")
    with np.errstate(over="ignore"):  # values too large for float32 are reported below
        single = np.ascontiguousarray(values, np.float32)
    wrong = np.argwhere(~np.isfinite(single))
    if len(wrong):
        row, column = wrong[0].tolist()
        rows = len(np.unique(wrong[:, 0]))
        raise UserError(
            f"{path}: {name}[{row}, {column}] is {values[row, column]}, which is not a finite float32; {rows} "
            f"row{'s have' if rows > 1 else ' has'} such values. Correct or remove {'them' if rows > 1 else 'it'}"
        )
    return VectorInputs(torch.from_numpy(single))
