"""The data sets that are known by name: how each is opened from its folder, and how it is downloaded.

The order of their samples is official, so an id is the position in it, and their labels count as the truth.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from selfadapt.core.atomic_files import atomic_folder
from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback
from selfadapt.core.regular_files import check_regular
from selfadapt.core.rng import seeded
from selfadapt.data.dataset import Data, Samples
from selfadapt.data.images.storage import TensorImages
from selfadapt.data.sources.download import (
    CIFAR10_SHA1,
    by_torchvision,
    fetch_cifar10,
    fetch_fashion_mnist,
    fetch_mnist,
    verify,
)
from selfadapt.data.sources.image_folder import ImageEntry, data_from_headers, folder_data, read_headers
from selfadapt.data.splits import split_off

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_FASHION = (
    "t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
_DIGITS = tuple(str(k) for k in range(10))
_CIFAR: Mapping[str, Any] = {"augment": "crop-flip", "validation_last": True}
_HALVES = ({"train": True}, {"train": False})  # arguments of torchvision's classes for training and test split
_NAMED = ({"split": "train"}, {"split": "test"})


@dataclass(frozen=True)
class Source:
    """A built-in data set."""

    open: Callable[[Path, int | None], Data]  # takes the folder and the image size
    fetch: Callable[[Path, ProgressCallback], None] | None = None
    by_hand: str = ""  # which files to put where, if it cannot be downloaded
    mixed: bool = True  # the official order mixes the classes
    crops_from_original: bool = False  # random crops are usually cut from the original images
    bundled: bool = False  # part of an installed package, so nothing is downloaded


def _samples(prefix: str, images_NCHW: Any, labels: Any) -> Samples:
    images = torch.from_numpy(np.require(images_NCHW, requirements=["C", "W"]))
    numbers = torch.tensor(np.asarray(labels), dtype=torch.int64)
    ids = [f"{prefix}/{i}" for i in range(len(numbers))]
    return Samples(inputs=TensorImages(images), labels=numbers, truth=numbers, ids=ids)


def _train_and_test(name: str, train: tuple[Any, Any], test: tuple[Any, Any], **fields: Any) -> Data:
    """Create data from images and labels of both splits."""
    samples = {split: _samples(f"{name}/{split}", *arrays) for split, arrays in (("train", train), ("test", test))}
    return Data.of(samples, name=name, **fields)


def digits(folder: Path, resize: int | None) -> Data:
    """1,797 handwritten digits of 8×8 pixels from scikit-learn: 1,397 train, 100 validation, 300 test."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(np.round(bunch.images * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    whole = _samples("digits", images, bunch.target)
    order = torch.randperm(len(whole), generator=seeded("digits", "split"))
    train, validation, test = (whole.take(index) for index in order.split([1397, 100, 300]))
    return Data(name="digits", classes=_DIGITS, train=train, validation=validation, test=test)


def _torchvision(
    kind: str, name: str, splits: Sequence[Mapping[str, Any]], *, classes: Sequence[str] = (), **fields: Any
) -> Callable[[Path, int | None], Data]:
    """Return a function that opens a data set of torchvision, whose training and test split have these arguments."""

    def open_set(folder: Path, resize: int | None) -> Data:
        from torchvision import datasets

        with by_torchvision(name, f"put its files into {folder}"):
            train, test = (getattr(datasets, kind)(folder, **split) for split in splits)
        return _train_and_test(name, _arrays(train), _arrays(test), classes=tuple(classes or test.classes), **fields)

    return open_set


def _arrays(dataset: Any) -> tuple[Any, Any]:
    """Return images and labels of a data set of torchvision, which order and name them in several ways."""
    images = np.asarray(dataset.data)
    if images.ndim == 3:
        images = images[:, None]
    elif images.shape[3] == 3:
        images = images.transpose(0, 3, 1, 2)
    return images, dataset.labels if hasattr(dataset, "labels") else dataset.targets


def cifar10(folder: Path, resize: int | None) -> Data:
    """CIFAR10 with the paper's split: 45,000 train, the last 5,000 validation, 10,000 test."""
    binary = folder / "cifar-10-batches-bin"
    if not binary.exists():
        return _torchvision("CIFAR10", "cifar10", _HALVES, **_CIFAR)(folder, resize)
    *train, test = CIFAR10_SHA1
    arrays = (_binary_rows(binary, names) for names in (train, [test]))
    return _train_and_test("cifar10", *arrays, classes=CIFAR10_CLASSES, **_CIFAR)


def _binary_rows(folder: Path, names: Sequence[str]) -> tuple[Any, Any]:
    """Read and verify images and labels of some of CIFAR10's binary files."""
    size = 10_000
    images, labels = np.empty((len(names) * size, 3, 32, 32), np.uint8), np.empty(len(names) * size, np.uint8)
    for number, name in enumerate(names):
        content = (folder / f"{name}.bin").read_bytes()
        verify(str(folder / f"{name}.bin"), content, CIFAR10_SHA1[name])
        rows, target = np.frombuffer(content, np.uint8).reshape(size, 3073), slice(number * size, (number + 1) * size)
        images[target], labels[target] = rows[:, 1:].reshape(size, 3, 32, 32), rows[:, 0]
    return images, labels


def stl10(folder: Path, resize: int | None) -> Data:
    """5,000 labelled images of 96×96 pixels; the unlabelled ones are these and 100,000 more, as in the paper."""
    from torchvision.datasets import STL10

    data = _torchvision("STL10", "stl10", _NAMED, augment="crop-flip")(folder, resize)
    with by_torchvision("stl10", f"put its files into {folder}"):
        unlabelled = STL10(folder, split="train+unlabeled").data
    return replace(data, unlabelled=TensorImages(torch.from_numpy(unlabelled)))


def cats_dogs(folder: Path, resize: int | None) -> Data:
    """Dogs vs. Cats in the layout of Kaggle: train/cat.0.jpg, …; a fifth of each class becomes the test split."""
    files = sorted((folder / "train").glob("*.jpg"))
    entries = [ImageEntry(str(file.relative_to(folder)), file, file.name.split(".")[0]) for file in files]
    if not entries:
        raise UserError(f"{folder} must contain train/cat.0.jpg and so on, as Kaggle's archive does")
    data = data_from_headers("cats-dogs", *read_headers(entries), resize=resize or 64)
    train, test = split_off(data.train, 0.2, seeded("cats-dogs", "split"))
    return replace(data, train=train, validation=None, test=test)


def imagenet(folder: Path, resize: int | None) -> Data:
    """ImageNet in the usual folders, train/n01440764/*.JPEG and val/…; the official validation split is the test."""
    data = folder_data(folder, resize=resize or 256)
    if data.validation is None:
        raise UserError(f"{folder} must contain train/ and val/ with a folder for each class")
    return replace(data, name="imagenet", validation=None, test=data.validation, augment="resized-crop")


def cifar10c(folder: Path, corruption: str, level: int) -> Samples:
    """Open the CIFAR10 test set under one corruption at a level from 1 to 5.

    Args:
        folder: The arrays of CIFAR-10-C: NAME.npy for each corruption, and labels.npy.
        corruption: Name of the corruption.
        level: Severity, 1 to 5.

    Raises:
        UserError: A file is missing, or there is no such level.
    """
    for name in (corruption, "labels"):
        check_regular(folder / f"{name}.npy")
    try:
        images = np.load(folder / f"{corruption}.npy", mmap_mode="r")
        labels = np.load(folder / "labels.npy")
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} must contain {corruption}.npy and labels.npy of CIFAR-10-C: {error}") from error
    count = len(labels) // 5
    if not 1 <= level <= 5 or len(images) != len(labels):
        raise UserError(
            f"level {level} of {corruption} does not exist; {folder} contains {len(images)} images for levels 1 to 5"
        )
    chosen = slice((level - 1) * count, level * count)
    return _samples(f"cifar10c/{corruption}/{level}", images[chosen].transpose(0, 3, 1, 2), labels[chosen])


def _download(kind: str, name: str, *options: Mapping[str, Any]) -> Callable[[Path, ProgressCallback], None]:
    def fetch(final: Path, on_progress: ProgressCallback) -> None:
        from torchvision import datasets

        remedy = f"download its files elsewhere and put them into {final}"
        with atomic_folder(final) as draft, by_torchvision(name, remedy):
            for option in options:
                getattr(datasets, kind)(draft, download=True, **option)

    return fetch


SOURCES: dict[str, Source] = {
    "digits": Source(digits, bundled=True),
    "fashion-mnist": Source(
        _torchvision("FashionMNIST", "fashion-mnist", _HALVES, classes=_FASHION, augment="crop-flip"),
        fetch_fashion_mnist,
    ),
    "mnist": Source(_torchvision("MNIST", "mnist", _HALVES, classes=_DIGITS, augment="crop"), fetch_mnist),
    "cifar10": Source(cifar10, fetch_cifar10),
    "cifar100": Source(_torchvision("CIFAR100", "cifar100", _HALVES, **_CIFAR), _download("CIFAR100", "cifar100", {})),
    # Flips would change the meaning of house numbers, so the augmentation rotates slightly and crops.
    "svhn": Source(
        _torchvision("SVHN", "svhn", _NAMED, classes=_DIGITS, augment="rotate-crop"),
        _download("SVHN", "svhn", *_NAMED),
    ),
    "stl10": Source(stl10, _download("STL10", "stl10", {})),
    "cats-dogs": Source(
        cats_dogs, by_hand="unpack Kaggle's Dogs vs. Cats so that {folder}/train/cat.0.jpg exists", mixed=False
    ),
    "imagenet": Source(
        imagenet,
        by_hand="put ImageNet's class folders into {folder}/train and {folder}/val",
        mixed=False,
        crops_from_original=True,
    ),
}
