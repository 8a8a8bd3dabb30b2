"""Arrays of a user's own: an .npz file, or any torch Dataset."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from selfadapt.core.errors import UserError
from selfadapt.data.dataset import Data, Samples
from selfadapt.data.images.storage import TensorImages
from selfadapt.data.labels.class_names import LEAVE_OUT, ONE_COLUMN_EACH, UNLABELLED, class_names, is_missing, numbered

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


def arrays(path: Path, *, unlabelled: bool = False) -> Data:
    """An .npz file with x_train and y_train, optionally x_val, y_val, x_test, y_test. An id is a hash of the image.

    With `unlabelled`, there may be no y_train; then only x_train counts.
    """
    found = read_arrays(path, unlabelled=unlabelled)
    classes = array_classes(path, found["y_train"])
    train = _array_part(path, found, "train", classes)
    if train is None:
        raise UserError(f"{path}: x_train is empty")
    validation, test = _array_part(path, found, "val", classes), _array_part(path, found, "test", classes)
    for name, part in (("x_val", validation), ("x_test", test)):
        if part is not None and part.inputs.shape != train.inputs.shape:
            raise UserError(
                f"{path}: {name} holds images of C×H×W {part.inputs.shape}, but x_train of {train.inputs.shape}"
            )
    return Data(name=path.stem, classes=classes, train=train, validation=validation, test=test)


def read_arrays(path: Path, *, unlabelled: bool = False) -> dict[str, Array]:
    """The arrays of an .npz file by name, x_train and y_train among them."""
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError("it is a single array")
        with file:
            found = {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError, BadZipFile, KeyError) as error:
        raise UserError(f"{path} cannot be read as an .npz file of plain arrays: {error}") from error
    if unlabelled and "x_train" in found and "y_train" not in found:
        found = {"x_train": found["x_train"], "y_train": np.full(len(found["x_train"]), UNLABELLED)}
    if "x_train" not in found or "y_train" not in found:
        raise UserError(f"{path} holds {sorted(found) or 'nothing'}; it must hold x_train and y_train")
    return found


def array_classes(path: Path, labels: Array) -> tuple[str, ...]:
    check_label_array(path, "y_train", labels)
    if labels.dtype.kind not in "iuU":
        raise UserError(f"{path}: y_train is {labels.dtype}; labels must be whole numbers or words")
    if labels.dtype.kind == "i" and labels.size and labels.min() < 0:
        row = int(labels.argmin())
        raise UserError(f"{path}: y_train[{row}] is {labels.ravel()[row]}; labels must not be negative")
    return class_names(str(path), [str(label) for label in labels.ravel()])


def check_label_array(path: Path, name: str, labels: Array) -> None:
    """Refuse several labels for each sample, and missing ones."""
    if labels.ndim == 2 and labels.shape[1] > 1:
        raise UserError(f"{path}: {name} has shape {labels.shape}; {ONE_COLUMN_EACH}")
    missing_N = np.array([is_missing(own) for own in labels.ravel().tolist()] if labels.dtype.kind in "fU" else [])
    missing = np.flatnonzero(missing_N)
    if len(missing):
        raise UserError(
            f"{path}: {name}[{missing[0]}] is missing, as are {len(missing)} of {labels.size} labels; {LEAVE_OUT}"
        )


def _array_part(path: Path, found: Mapping[str, Array], part: str, classes: tuple[str, ...]) -> Samples | None:
    both = part_arrays(path, found, part)
    if both is None:
        return None
    (images, labels), images_name = both, f"x_{part}"
    _check_images(path, images_name, images)
    if not images.size:
        return None
    return samples_from_arrays(
        images,
        numbered([str(label) for label in labels], classes, lambda i: f"{path}: y_{part}[{i}]"),
        part,
        [f"{images_name}[{i}]" for i in range(len(labels))],
    )


def part_arrays(path: Path, found: Mapping[str, Array], part: str) -> tuple[Array, Array] | None:
    """Inputs and labels of one part, or None if the file does not hold it."""
    inputs_name, labels_name = f"x_{part}", f"y_{part}"
    if inputs_name not in found and labels_name not in found:
        return None
    for name, other in ((inputs_name, labels_name), (labels_name, inputs_name)):
        if name not in found:
            raise UserError(f"{path} holds {other} but no {name}")
    inputs, labels = found[inputs_name], found[labels_name]
    check_label_array(path, labels_name, labels)
    if labels.ndim != 1 or inputs.ndim < 1 or len(labels) != len(inputs):
        size = len(inputs) if inputs.ndim else "no"
        raise UserError(f"{path}: {labels_name} has shape {labels.shape}, but {inputs_name} holds {size} samples")
    return inputs, labels


def _check_images(path: Path, name: str, images: Array) -> None:
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise UserError(
            f"{path}: {name} is {images.dtype} of shape {images.shape}; images must be uint8 of shape N×H×W or N×H×W×C"
        )
    if images.size and images.ndim == 4 and images.shape[3] not in (1, 3, 4):
        raise UserError(
            f"{path}: {name} of shape {images.shape} has {images.shape[3]} channels; channels come last and are "
            "1, 3 or 4. Move them with x.transpose(0, 2, 3, 1) if they come first"
        )


def read_unlabelled(path: Path) -> Array:
    """Inputs to predict: an .npy, or an .npz that holds them as `x`."""
    try:
        found = np.load(path, allow_pickle=False)
        return found if isinstance(found, np.ndarray) else found["x"]
    except (ValueError, OSError, EOFError, BadZipFile) as error:
        raise UserError(f"{path} cannot be read as an .npy or .npz of plain arrays: {error}") from error
    except KeyError:
        raise UserError(f"{path} holds {sorted(found)}; what is to be predicted must be called x") from None


def read_images(path: Path) -> TensorImages:
    """Images without labels, as arrays of them are trained on."""
    images = read_unlabelled(path)
    _check_images(path, "x", images)
    return _channels_first(images)


def samples_from_arrays(images: Array, labels: Tensor, prefix: str, places: Sequence[str] | None = None) -> Samples:
    """Samples over uint8 images of shape N×H×W or N×H×W×C, whose ids are hashes of the images."""
    return Samples(
        inputs=_channels_first(images), labels=labels, truth=None, ids=content_ids(prefix, images), paths=places
    )


def _channels_first(images: Array) -> TensorImages:
    channels_last = images if images.ndim == 4 else images[..., None]
    return TensorImages(torch.from_numpy(np.ascontiguousarray(np.moveaxis(channels_last, -1, 1))))


def content_ids(prefix: str, values: Array | Sequence[bytes]) -> list[str]:
    """An id from the content of each; of those that are the same, the second gets -2, and so on."""
    seen: Counter[str] = Counter()
    ids = []
    for value in np.ascontiguousarray(values) if isinstance(values, np.ndarray) else values:
        digest = hashlib.sha1(value, usedforsecurity=False).hexdigest()[:16]
        seen[digest] += 1
        ids.append(f"{prefix}/{digest}" + (f"-{seen[digest]}" if seen[digest] > 1 else ""))
    return ids


class IndexedDataset(Dataset[tuple[Any, ...]]):
    """Any torch Dataset with each sample's index appended, as a training loop of your own needs it."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        item = self.dataset[index]
        return (*item, index) if isinstance(item, tuple | list) else (item, index)


def samples_from_dataset(dataset: Any, name: str) -> Samples:
    """The images and labels of a torch Dataset of (uint8 tensor or PIL image, label), read into memory."""
    images, labels = [], []
    for position in range(len(dataset)):
        image, label = dataset[position][:2]
        pixels = image if isinstance(image, Tensor) else torch.from_numpy(np.array(image))
        if not isinstance(image, Tensor):
            pixels = pixels.unsqueeze(0) if pixels.ndim == 2 else pixels.permute(2, 0, 1)
        if pixels.dtype != torch.uint8 or pixels.ndim != 3:
            raise UserError(
                f"item {position} of the dataset is {pixels.dtype} of shape {tuple(pixels.shape)}; "
                "images must be uint8 of shape C×H×W, or PIL images"
            )
        images.append(pixels)
        labels.append(int(label))
    ids = [f"{name}/{i}" for i in range(len(labels))]
    return Samples(inputs=TensorImages(torch.stack(images)), labels=torch.tensor(labels), truth=None, ids=ids)
