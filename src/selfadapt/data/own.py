"""A user's own data: a folder of class folders, a table of paths and labels, arrays, any torch Dataset."""

import csv
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from selfadapt.data.images import ImageFiles, TensorImages, UnreadableImage, header
from selfadapt.data.samples import Data, Samples
from selfadapt.errors import UserError

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"})
PARTS = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


@dataclass(frozen=True)
class Entry:
    """A sample that a folder or a table names: its file, and its label as the user writes it."""

    id: str
    path: Path
    label: str
    part: str = "train"


def folder(root: Path, *, resize: int | None = None) -> Data:
    """A folder of class folders, or such folders under train/, val/ and test/. An id is the path below the root."""
    sections = {PARTS[path.name.lower()]: path for path in _subfolders(root) if path.name.lower() in PARTS}
    if "train" not in sections:
        sections = {"train": root}
    entries = []
    for part, section in sections.items():
        class_folders = _subfolders(section)
        if not class_folders:
            raise UserError(f"{section} holds no class folders; put the images of each class into a folder of its name")
        for class_folder in class_folders:
            files = sorted(
                path for path in class_folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()
            )
            if not files and part == "train":
                raise UserError(f"the class folder {class_folder} holds no image; fill it or remove it")
            entries += [Entry(str(file.relative_to(root)), file, class_folder.name, part) for file in files]
    return from_entries(root.name or "folder", entries, resize=resize)


def table(path: Path, *, resize: int | None = None) -> Data:
    """A .csv or .parquet with path and label, optionally id and split; paths count from the table's folder."""
    rows = _parquet_rows(path) if path.suffix == ".parquet" else _csv_rows(path)
    if not rows:
        raise UserError(f"{path} has no rows")
    missing = {"path", "label"} - set(rows[0])
    if missing:
        raise UserError(
            f"{path} lacks the column {' and '.join(sorted(missing))}; it has {', '.join(map(str, rows[0]))}"
        )
    entries: list[Entry] = []
    seen: dict[str, int] = {}
    for number, row in enumerate(rows, start=2):  # row 1 of a table is its head
        if not row["path"] or row["label"] in (None, ""):
            raise UserError(f"{path}, row {number}: path or label is empty")
        sample_id = str(row.get("id") or row["path"])
        if sample_id in seen:
            raise UserError(
                f"{path}: the id {sample_id!r} stands in rows {seen[sample_id]} and {number}; ids must differ"
            )
        seen[sample_id] = number
        part = str(row.get("split") or "train").lower()
        if part not in PARTS:
            raise UserError(f"{path}, row {number}: split is {part!r}; write train, val or test")
        entries.append(Entry(sample_id, path.parent / str(row["path"]), str(row["label"]), PARTS[part]))
    return from_entries(path.stem, entries, resize=resize)


def _subfolders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _csv_rows(path: Path) -> list[dict[str, Any]]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            return list(csv.DictReader(file, skipinitialspace=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as a .csv file: {error}") from error


def _parquet_rows(path: Path) -> list[dict[str, Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise UserError("reading .parquet needs pyarrow: pip install 'selfadapt[parquet]'") from error
    try:
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
        return rows
    except (OSError, ArrowException) as error:
        raise UserError(f"{path} cannot be read as a .parquet file: {error}") from error


def from_entries(name: str, entries: Sequence[Entry], *, resize: int | None = None) -> Data:
    """Data over image files: their headers are read, broken ones are set aside, the rest must fit together."""
    if resize is not None and resize < 1:
        raise UserError(f"--image-size {resize} must be at least 1")
    with ThreadPoolExecutor() as pool:
        headers = list(pool.map(_header_or_reason, [entry.path for entry in entries]))
    fine = [(entry, found) for entry, found in zip(entries, headers, strict=True) if not isinstance(found, str)]
    unreadable = [(entry.id, found) for entry, found in zip(entries, headers, strict=True) if isinstance(found, str)]
    if not fine:
        example = f", such as {unreadable[0][0]}: {unreadable[0][1]}" if unreadable else ""
        raise UserError(f"{name}: none of {len(entries)} files can be read as an image{example}")
    channels = 1 if all(grey for _, (_, grey) in fine) else 3
    width, height = _common_size(name, [(entry, size) for entry, (size, _) in fine], resize)
    classes = _classes(name, [entry.label for entry, _ in fine if entry.part == "train"])

    def part(which: str) -> Samples | None:
        chosen = [entry for entry, _ in fine if entry.part == which]
        if not chosen:
            return None
        return Samples(
            images=ImageFiles([entry.path for entry in chosen], (channels, height, width), resize),
            labels=numbered([entry.label for entry in chosen], classes, lambda i: f"{name}: {chosen[i].id}"),
            truth=None,
            ids=[entry.id for entry in chosen],
            paths=[str(entry.path) for entry in chosen],
        )

    train = part("train")
    assert train is not None
    return Data(
        name=name,
        classes=classes,
        train=train,
        validation=part("validation"),
        test=part("test"),
        augment="crop-flip",
        unreadable=unreadable,
    )


def _header_or_reason(path: Path) -> tuple[tuple[int, int], bool] | str:
    try:
        return header(path)
    except UnreadableImage as error:
        return "there is no such file" if not path.exists() else str(error)


def _common_size(name: str, found: Sequence[tuple[Entry, tuple[int, int]]], resize: int | None) -> tuple[int, int]:
    if resize is not None:
        return resize, resize
    sizes = Counter(size for _, size in found)
    if len(sizes) > 1:
        shown = [
            next(f"{w}×{h} ({entry.id})" for entry, size in found if size == (w, h))
            for (w, h), _ in sizes.most_common(2)
        ]
        raise UserError(
            f"{name}: the images have {len(sizes)} different sizes, such as {' and '.join(shown)}; "
            "bring them to one with --image-size, for instance --image-size 64"
        )
    return next(iter(sizes))


def _classes(name: str, labels: Sequence[str]) -> tuple[str, ...]:
    """The classes in order: numbers by value, words by the alphabet."""
    if not labels:
        raise UserError(f"{name}: there is no training sample")
    words = set(labels)
    for word in words:
        if not word.strip() or not word.isprintable():
            raise UserError(f"{name}: {word!r} cannot be the name of a class; use printable characters")
    classes = sorted(words, key=int) if all(word.isdecimal() for word in words) else sorted(words)
    if len(classes) < 2:
        raise UserError(f"{name}: there is one class only, {classes[0]!r}; at least two are needed")
    return tuple(classes)


def numbered(labels: Sequence[str], classes: tuple[str, ...], place: Callable[[int], str]) -> Tensor:
    """Labels as numbers; `place` says where a label that is no class was found."""
    number = {label: k for k, label in enumerate(classes)}
    for position, label in enumerate(labels):
        if label not in number:
            raise UserError(f"{place(position)} has the label {label!r}, which no training sample has")
    return torch.tensor([number[label] for label in labels], dtype=torch.int64)


def arrays(path: Path) -> Data:
    """An .npz file with x_train and y_train, optionally x_val, y_val, x_test, y_test. An id is a hash of the image."""
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError("it is a single array")
        with file:
            found = {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError, BadZipFile, KeyError) as error:
        raise UserError(f"{path} cannot be read as an .npz file of plain arrays: {error}") from error
    if "x_train" not in found or "y_train" not in found:
        raise UserError(f"{path} holds {sorted(found) or 'nothing'}; it must hold x_train and y_train")
    classes = _array_classes(path, found["y_train"])
    train = _array_part(path, found, "train", classes)
    if train is None:
        raise UserError(f"{path}: x_train is empty")
    validation, test = _array_part(path, found, "val", classes), _array_part(path, found, "test", classes)
    for name, part in (("x_val", validation), ("x_test", test)):
        if part is not None and part.images.shape != train.images.shape:
            raise UserError(
                f"{path}: {name} holds images of C×H×W {part.images.shape}, but x_train of {train.images.shape}"
            )
    return Data(name=path.stem, classes=classes, train=train, validation=validation, test=test)


def _array_classes(path: Path, labels: Array) -> tuple[str, ...]:
    if labels.dtype.kind not in "iuU":
        raise UserError(f"{path}: y_train is {labels.dtype}; labels must be whole numbers or words")
    if labels.dtype.kind == "i" and labels.size and labels.min() < 0:
        row = int(labels.argmin())
        raise UserError(f"{path}: y_train[{row}] is {labels.ravel()[row]}; labels must not be negative")
    return _classes(str(path), [str(label) for label in labels.ravel()])


def _array_part(path: Path, found: Mapping[str, Array], part: str, classes: tuple[str, ...]) -> Samples | None:
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
    if images.size and images.ndim == 4 and images.shape[3] not in (1, 3, 4):
        raise UserError(
            f"{path}: {images_name} of shape {images.shape} has {images.shape[3]} channels; channels come last and are "
            "1, 3 or 4. Move them with x.transpose(0, 2, 3, 1) if they come first"
        )
    if labels.ndim != 1 or len(labels) != len(images):
        raise UserError(f"{path}: {labels_name} has shape {labels.shape}, but {images_name} holds {len(images)} images")
    if not images.size:
        return None
    words = [str(label) for label in labels]
    return samples_from_arrays(
        images,
        numbered(words, classes, lambda i: f"{path}: {labels_name}[{i}]"),
        part,
        [f"{images_name}[{i}]" for i in range(len(labels))],
    )


def samples_from_arrays(images: Array, labels: Tensor, prefix: str, places: Sequence[str] | None = None) -> Samples:
    """Samples over uint8 images of shape N×H×W or N×H×W×C, whose ids are hashes of the images."""
    channels_last = images if images.ndim == 4 else images[..., None]
    tensor = torch.from_numpy(np.ascontiguousarray(np.moveaxis(channels_last, -1, 1)))
    return Samples(
        images=TensorImages(tensor), labels=labels, truth=None, ids=_content_ids(prefix, images), paths=places
    )


def _content_ids(prefix: str, images: Array) -> list[str]:
    """An id from the pixels; of images that are the same, the second gets -2, and so on."""
    seen: Counter[str] = Counter()
    ids = []
    for image in np.ascontiguousarray(images):
        digest = hashlib.sha1(image.data, usedforsecurity=False).hexdigest()[:16]
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
    return Samples(images=TensorImages(torch.stack(images)), labels=torch.tensor(labels), truth=None, ids=ids)


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
    rows = _csv_rows(path)
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
