"""Where data come from: named sets, and arrays of the user's own.

`open_data` takes what the user wrote for DATA and returns the samples with their parts.
"""

from collections.abc import Mapping
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from selfadapt.data.samples import Data, Samples, split_off
from selfadapt.data.seeds import seeded
from selfadapt.errors import UserError

VALIDATION_FRACTION = 0.1  # what is set aside where the data bring no validation part of their own


def open_data(source: str) -> Data:
    """The data set that a name or a path stands for."""
    if source == "digits":
        return digits()
    path = Path(source)
    if path.suffix == ".npz":
        return arrays(path)
    hint = "there is no such file" if not path.exists() else "only .npz files are read"
    raise UserError(f"cannot open data {source!r}: {hint}; give the name digits or the path of an .npz file")


def digits() -> Data:
    """1,797 handwritten digits of 8×8 pixels, inside scikit-learn: 1,397 train, 100 validation, 300 test."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(np.round(bunch.images * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    whole = Samples(images=images, labels=labels, truth=labels, ids=[f"digits/{i}" for i in range(len(labels))])
    order = torch.randperm(len(labels), generator=seeded("digits", "split"))
    train, validation, test = (whole.take(part) for part in order.split([1397, 100, 300]))
    classes = tuple(str(k) for k in range(10))
    return Data(name="digits", classes=classes, train=train, validation=validation, test=test)


def arrays(path: Path) -> Data:
    """An .npz file with x_train and y_train, optionally x_val, y_val, x_test, y_test."""
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except (ValueError, OSError, BadZipFile, KeyError) as error:
        raise UserError(f"{path} cannot be read as an .npz file of plain arrays: {error}") from error
    if "x_train" not in found or "y_train" not in found:
        raise UserError(f"{path} holds {sorted(found) or 'nothing'}; it must hold x_train and y_train")

    names = sorted({str(label) for label in found["y_train"].ravel()}, key=_natural)
    classes = _classes(path, found["y_train"], names)
    train = _part(path, found, "train", classes)
    if train is None:
        raise UserError(f"{path}: x_train is empty")
    validation, test = _part(path, found, "val", classes), _part(path, found, "test", classes)
    for name, part in (("x_val", validation), ("x_test", test)):
        if part is not None and part.images.shape[1:] != train.images.shape[1:]:
            raise UserError(
                f"{path}: {name} holds images of C×H×W {tuple(part.images.shape[1:])}, "
                f"but x_train of {tuple(train.images.shape[1:])}"
            )
    if validation is None:
        train, validation = split_off(train, VALIDATION_FRACTION, seeded("arrays", "split"))
    return Data(name=path.stem, classes=classes, train=train, validation=validation, test=test)


def _natural(label: str) -> tuple[int, int, str]:
    return (0, int(label), "") if label.lstrip("-").isdigit() else (1, 0, label)


def _classes(
    path: Path, labels: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]", names: list[str]
) -> tuple[str, ...]:
    """The classes in order: numbers count from 0 to the largest, words are sorted."""
    if labels.dtype.kind in "iu":
        if labels.size and labels.min() < 0:
            row = int(labels.ravel().argmin())
            raise UserError(f"{path}: y_train[{row}] is {labels.ravel()[row]}; labels count from 0")
        names = [str(k) for k in range(int(labels.max()) + 1)] if labels.size else []
    elif labels.dtype.kind != "U":
        raise UserError(f"{path}: y_train is {labels.dtype}; labels must be whole numbers or words")
    if len(names) < 2:
        raise UserError(f"{path}: y_train holds {len(names)} class; at least two are needed")
    return tuple(names)


def _part(
    path: Path,
    found: Mapping[str, "np.ndarray[tuple[int, ...], np.dtype[np.generic]]"],
    part: str,
    classes: tuple[str, ...],
) -> Samples | None:
    images_name, labels_name = f"x_{part}", f"y_{part}"
    if images_name not in found and labels_name not in found:
        return None
    for name, other in ((images_name, labels_name), (labels_name, images_name)):
        if name not in found:
            raise UserError(f"{path} holds {other} but no {name}")
    images, labels = found[images_name], found[labels_name]
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise UserError(
            f"{path}: {images_name} is {images.dtype} of shape {images.shape}; "
            "images must be uint8 of shape N×H×W or N×H×W×C"
        )
    if labels.ndim != 1 or len(labels) != len(images):
        raise UserError(f"{path}: {labels_name} has shape {labels.shape}, but {images_name} holds {len(images)} images")
    if not len(images):
        return None
    channels_last = images if images.ndim == 4 else images[..., None]
    tensor = torch.from_numpy(np.ascontiguousarray(np.moveaxis(channels_last, -1, 1)))
    ids = [f"{part}/{i}" for i in range(len(labels))]
    return Samples(images=tensor, labels=_numbered(path, labels_name, labels, classes), truth=None, ids=ids)


def _numbered(
    path: Path, name: str, labels: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]", classes: tuple[str, ...]
) -> Tensor:
    number = {label: k for k, label in enumerate(classes)}
    for row, label in enumerate(labels):
        if str(label) not in number:
            raise UserError(f"{path}: {name}[{row}] is {str(label)!r}, a label that y_train lacks")
    return torch.tensor([number[str(label)] for label in labels], dtype=torch.int64)
