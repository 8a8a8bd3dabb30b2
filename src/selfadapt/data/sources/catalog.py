"""Where data come from: named sets, and paths of a user's own.

`open_data` takes what the user wrote for DATA; `get_data` fetches a named set.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from selfadapt.core.cache_dir import cache_dir
from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.core.rng import seeded
from selfadapt.data.dataset import Data, Samples, split_off
from selfadapt.data.images.augment import AugmentName
from selfadapt.data.images.storage import TensorImages
from selfadapt.data.inputs import Inputs
from selfadapt.data.sources import image_folder
from selfadapt.data.sources.arrays import arrays
from selfadapt.data.sources.download import (
    CIFAR10_SHA1,
    appearing,
    by_torchvision,
    fetch_cifar10,
    fetch_fashion_mnist,
    fetch_mnist,
    verify,
)
from selfadapt.data.tabular.row_encoder import RowEncoder, Table
from selfadapt.data.tabular.table_data import table_data
from selfadapt.data.tabular.table_file import column_names, csv_rows, parquet_rows
from selfadapt.data.tabular.vectors import is_vectors, vector_arrays

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class Source:
    """A named set: how it is opened from its folder, and how it gets there."""

    open: Callable[[Path, int | None], Data]
    fetch: Callable[[Path, ProgressCallback], None] | None = None
    by_hand: str = ""  # what to put where, if it cannot be fetched
    mixed: bool = True  # its official order mixes the classes
    crops_from_pictures: bool = False  # its papers cut random crops from the pictures themselves


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which columns of a table of one's own hold what."""

    label: str = "label"
    text: str | None = None  # to be encoded; without it the columns themselves are the data
    group: str | None = None  # samples that belong together

    def refuse(self, source: str) -> None:
        """Raise a UserError if any is named; `source` has none."""
        for option, given in (
            ("--label-column", self.label != "label"),
            ("--text-column", self.text is not None),
            ("--group-column", self.group is not None),
        ):
            if given:
                raise UserError(f"{option} is for tables (.csv, .parquet), and {source} is none; leave it out")

    def open(self, path: Path, state: Mapping[str, Any] | None, on_progress: ProgressCallback) -> Data:
        """A table of values or texts, read as it was when the reader had this state."""
        from selfadapt.data.tabular.column_encoder import fit_columns
        from selfadapt.data.tabular.row_encoder import row_encoder_from_state
        from selfadapt.data.text.text_encoder import fit_text

        def fit(table: Table) -> RowEncoder:
            if state is not None:
                return row_encoder_from_state(state)
            return fit_columns(table) if self.text is None else fit_text(table, self.text, on_progress=on_progress)

        return table_data(path, fit, label_column=self.label, group_column=self.group)


Held = Literal["named", "photos", "small images", "vectors"]


def kind_of(source: str, columns: Columns) -> Held:
    """What a source holds, as far as a look at its head tells."""
    path = Path(source)
    if source in SOURCES:
        return "named"
    if path.suffix == ".npz" and path.is_file():
        return "vectors" if is_vectors(path) else "small images"
    if path.suffix in (".csv", ".parquet") and path.is_file():
        if columns.text is not None or "path" not in column_names(path):
            return "vectors"
        rows = parquet_rows(path) if path.suffix == ".parquet" else csv_rows(path)
        return image_folder.size_of_images(path.parent / str(row.get("path")) for row in rows)
    return image_folder.size_of_images(path.rglob("*")) if path.is_dir() else "photos"


def open_data(
    source: str,
    *,
    resize: int | None = None,
    unlabelled: bool = False,
    white: float | None = None,
    columns: Columns | None = None,
    reader: Mapping[str, Any] | None = None,
    on_progress: ProgressCallback = no_progress,
) -> Data:
    """The data set that a name or a path stands for. A name wins over a path; write ./NAME for the path.

    With `unlabelled`, labels may be missing. `white` is what becomes 255 in files of over 8 bits; if not given, it is
    found. `columns` are those of tables, and the state of a `reader` is for tables that hold no images.
    """
    columns = columns or Columns()
    check_there(source)
    if source in SOURCES or Path(source).suffix not in (".csv", ".parquet"):
        columns.refuse(source)
    if source in SOURCES:
        folder = cache_dir() / "data" / source
        return replace(SOURCES[source].open(folder, resize), mixed=SOURCES[source].mixed)
    path = Path(source)
    if path.is_dir():
        return image_folder.folder(path, resize=resize, unlabelled=unlabelled, white=white)
    if path.suffix in (".csv", ".parquet"):
        if kind_of(source, columns) == "vectors":
            return columns.open(path, reader, on_progress)
        return image_folder.table(
            path,
            label_column=columns.label,
            group_column=columns.group,
            resize=resize,
            unlabelled=unlabelled,
            white=white,
        )
    if path.suffix == ".npz":
        vectors = kind_of(source, columns) == "vectors"
        return vector_arrays(path, unlabelled=unlabelled) if vectors else arrays(path, unlabelled=unlabelled)
    raise UserError(f"{source} is none of: a folder of class folders, a .csv, a .parquet, an .npz")


def check_there(source: str) -> None:
    """Raise a UserError that says how to get it, if a named set or a path is not on this machine."""
    if source in SOURCES:
        folder = cache_dir() / "data" / source
        if source != "digits" and not folder.exists():
            advice = f"fetch it with: selfadapt data get {source}" if SOURCES[source].fetch else SOURCES[source].by_hand
            raise UserError(f"the data set {source} is not on this machine; {advice.format(folder=folder)}")
    elif not Path(source).exists():
        raise UserError(f"there is no data set or path {source!r}; names are {', '.join(SOURCES)}")


def get_data(name: str, on_progress: ProgressCallback = no_progress) -> tuple[Path, Data]:
    """Fetch a named set if it is not there, verify it, and open it."""
    if name not in SOURCES:
        raise UserError(f"there is no data set {name!r}; names are {', '.join(SOURCES)}")
    source, folder = SOURCES[name], cache_dir() / "data" / name
    if name != "digits" and not folder.exists():
        if source.fetch is None:
            raise UserError(f"{name} cannot be fetched; {source.by_hand.format(folder=folder)}")
        source.fetch(folder, on_progress)
    return folder, open_data(name)


def digits(folder: Path, resize: int | None) -> Data:
    """1,797 handwritten digits of 8×8 pixels, inside scikit-learn: 1,397 train, 100 validation, 300 test."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(np.round(bunch.images * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    whole = _samples("digits", images, bunch.target)
    order = torch.randperm(len(whole), generator=seeded("digits", "split"))
    train, validation, test = (whole.take(part) for part in order.split([1397, 100, 300]))
    return Data(name="digits", classes=_numbers(10), train=train, validation=validation, test=test)


def _samples(prefix: str, images_NCHW: Any, labels: Any) -> Samples:
    """Samples of a named set, whose order is official: an id is the position in it. The labels count as the truth."""
    images = torch.from_numpy(np.require(images_NCHW, requirements=["C", "W"]))
    numbers = torch.tensor(np.asarray(labels), dtype=torch.int64)
    ids = [f"{prefix}/{i}" for i in range(len(numbers))]
    return Samples(inputs=TensorImages(images), labels=numbers, truth=numbers, ids=ids)


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(str(k) for k in range(count))


def _mnist_family(kind: str, name: str, classes: tuple[str, ...] | None) -> Callable[[Path, int | None], Data]:
    def open_set(folder: Path, resize: int | None) -> Data:
        from torchvision import datasets

        parts = {}
        for part in ("train", "test"):
            dataset = getattr(datasets, kind)(folder, train=part == "train")
            parts[part] = _samples(f"{name}/{part}", dataset.data.unsqueeze(1), dataset.targets)
        augment: AugmentName = "crop" if classes is None else "crop-flip"
        return Data(
            name=name,
            classes=classes or _numbers(10),
            train=parts["train"],
            test=parts["test"],
            validation=None,
            augment=augment,
        )

    return open_set


def cifar10(folder: Path, resize: int | None) -> Data:
    """CIFAR10 with the paper's split: 45,000 train, the last 5,000 validation, 10,000 test."""
    binary = folder / "cifar-10-batches-bin"
    if not binary.exists():
        return _torchvision_cifar("CIFAR10", "cifar10", folder)
    *train, test = CIFAR10_SHA1
    return _cifar("cifar10", CIFAR10_CLASSES, *(_binary_rows(binary, names) for names in (train, [test])))


def _binary_rows(folder: Path, names: Sequence[str]) -> tuple[Any, Any]:
    """Images and labels of some of CIFAR10's binary files, each put in its place as it is read."""
    size = 10_000
    images, labels = np.empty((len(names) * size, 3, 32, 32), np.uint8), np.empty(len(names) * size, np.uint8)
    for number, name in enumerate(names):
        content = (folder / f"{name}.bin").read_bytes()
        verify(str(folder / f"{name}.bin"), content, CIFAR10_SHA1[name])
        rows, own = np.frombuffer(content, np.uint8).reshape(size, 3073), slice(number * size, (number + 1) * size)
        images[own], labels[own] = rows[:, 1:].reshape(size, 3, 32, 32), rows[:, 0]
    return images, labels


def _cifar(name: str, classes: tuple[str, ...], train: tuple[Any, Any], test: tuple[Any, Any]) -> Data:
    return Data(
        name=name,
        classes=classes,
        train=_samples(f"{name}/train", *train),
        validation=None,
        test=_samples(f"{name}/test", *test),
        augment="crop-flip",
        validation_last=True,
    )


def _torchvision_cifar(kind: str, name: str, folder: Path) -> Data:
    from torchvision import datasets

    parts = []
    with by_torchvision(name, f"put its files into {folder}"):
        for train in (True, False):
            dataset = getattr(datasets, kind)(folder, train=train)
            parts.append((dataset.data.transpose(0, 3, 1, 2), dataset.targets))
    return _cifar(name, tuple(dataset.classes), *parts)


def cifar100(folder: Path, resize: int | None) -> Data:
    return _torchvision_cifar("CIFAR100", "cifar100", folder)


def svhn(folder: Path, resize: int | None) -> Data:
    """House numbers; flips would change them, so they are turned a little and cropped."""
    from torchvision.datasets import SVHN

    with by_torchvision("svhn", f"put its files into {folder}"):
        parts = {
            part: _samples(f"svhn/{part}", (dataset := SVHN(folder, split=part)).data, dataset.labels)
            for part in ("train", "test")
        }
    return Data(
        name="svhn",
        classes=_numbers(10),
        train=parts["train"],
        test=parts["test"],
        validation=None,
        augment="rotate-crop",
    )


def stl10(folder: Path, resize: int | None) -> Data:
    """5,000 labelled images of 96×96; without labels these and 100,000 more, as in the paper."""
    from torchvision.datasets import STL10

    with by_torchvision("stl10", f"put its files into {folder}"):
        parts = {
            part: _samples(f"stl10/{part}", (dataset := STL10(folder, split=part)).data, dataset.labels)
            for part in ("train", "test")
        }
        unlabelled: Inputs = TensorImages(torch.from_numpy(STL10(folder, split="train+unlabeled").data))
    return Data(
        name="stl10",
        classes=tuple(dataset.classes),
        train=parts["train"],
        test=parts["test"],
        validation=None,
        unlabelled=unlabelled,
        augment="crop-flip",
    )


def cats_dogs(folder: Path, resize: int | None) -> Data:
    """Dogs vs. Cats as Kaggle gives it: train/cat.0.jpg and so on; a fifth of each class is the test."""
    files = sorted((folder / "train").glob("*.jpg"))
    entries = [image_folder.Entry(str(file.relative_to(folder)), file, file.name.split(".")[0]) for file in files]
    if not entries:
        raise UserError(f"{folder} holds no train/cat.0.jpg and so on")
    data = image_folder.from_entries("cats-dogs", entries, resize=resize or 64)
    train, test = split_off(data.train, 0.2, seeded("cats-dogs", "split"))
    return replace(data, train=train, validation=None, test=test)


def imagenet(folder: Path, resize: int | None) -> Data:
    """ImageNet's usual folders, train/n01440764/*.JPEG and val/…; the official validation part is the test."""
    data = image_folder.folder(folder, resize=resize or 256)
    if data.validation is None:
        raise UserError(f"{folder} must hold train/ and val/ with a folder for each class")
    return replace(data, name="imagenet", validation=None, test=data.validation, augment="resized-crop")


def cifar10c(folder: Path, corruption: str, level: int) -> Samples:
    """The CIFAR10 test set under one corruption at a level from 1 to 5: NAME.npy and labels.npy of CIFAR-10-C."""
    try:
        images = np.load(folder / f"{corruption}.npy", mmap_mode="r")
        labels = np.load(folder / "labels.npy")
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} must hold {corruption}.npy and labels.npy of CIFAR-10-C: {error}") from error
    count = len(labels) // 5
    if not 1 <= level <= 5 or len(images) != len(labels):
        raise UserError(
            f"level {level} of {corruption} is not there; {folder} holds {len(images)} images for levels 1..5"
        )
    chosen = slice((level - 1) * count, level * count)
    return _samples(f"cifar10c/{corruption}/{level}", images[chosen].transpose(0, 3, 1, 2), labels[chosen])


def _download(kind: str, name: str, *options: dict[str, Any]) -> Callable[[Path, ProgressCallback], None]:
    def fetch(final: Path, on_progress: ProgressCallback) -> None:
        from torchvision import datasets

        with appearing(final) as draft, by_torchvision(name, f"get its files elsewhere and put them into {final}"):
            for option in options:
                getattr(datasets, kind)(draft, download=True, **option)

    return fetch


_FASHION = (
    "t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip

SOURCES: dict[str, Source] = {
    "digits": Source(digits),
    "fashion-mnist": Source(_mnist_family("FashionMNIST", "fashion-mnist", _FASHION), fetch_fashion_mnist),
    "mnist": Source(_mnist_family("MNIST", "mnist", None), fetch_mnist),
    "cifar10": Source(cifar10, fetch_cifar10),
    "cifar100": Source(cifar100, _download("CIFAR100", "cifar100", {})),
    "svhn": Source(svhn, _download("SVHN", "svhn", {"split": "train"}, {"split": "test"})),
    "stl10": Source(stl10, _download("STL10", "stl10", {})),
    "cats-dogs": Source(
        cats_dogs, by_hand="unpack Kaggle's Dogs vs. Cats so that {folder}/train/cat.0.jpg exists", mixed=False
    ),
    "imagenet": Source(
        imagenet,
        by_hand="put ImageNet's class folders into {folder}/train and {folder}/val",
        mixed=False,
        crops_from_pictures=True,
    ),
}
