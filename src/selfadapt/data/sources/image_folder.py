"""A user's own image files: a folder of class folders, or a table of paths and labels."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from selfadapt.core.errors import UserError
from selfadapt.core.file_names import NO_TEXT, as_text
from selfadapt.data.dataset import Data, Samples
from selfadapt.data.images.metadata import Header, header, white_of
from selfadapt.data.images.storage import ImageFiles, UnreadableImage
from selfadapt.data.labels.class_names import UNLABELLED, check_labels, class_names, numbered
from selfadapt.data.tabular.table_file import csv_rows, parquet_rows

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"})
SMALL_IMAGE = 32  # pixels on the shorter side, up to which networks that were trained on photos see little
_LOOKED_AT = 32  # images, to tell their size
_LARGEST_CHOSEN = 64  # pixels; more is slow from scratch, and --image-size says so
PARTS = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}


@dataclass(frozen=True)
class Entry:
    """A sample that a folder or a table names: its file, and its label as the user writes it."""

    id: str
    path: Path
    label: str
    part: str = "train"
    group: str | None = None  # what it belongs to, such as a patient


def size_of_images(paths: Iterable[Path]) -> Literal["photos", "small images"]:
    """Whether images are as large as photos, by the first that there are of them."""
    shorter = []
    for path in islice((path for path in paths if path.suffix.lower() in SUFFIXES), _LOOKED_AT):
        found = _header_or_reason(path)
        if not isinstance(found, str):
            shorter.append(min(found.size))
    return "photos" if not shorter or sorted(shorter)[len(shorter) // 2] > SMALL_IMAGE else "small images"


def folder(root: Path, *, resize: int | None = None, unlabelled: bool = False, white: float | None = None) -> Data:
    """A folder of class folders, or such folders under train/, val/ and test/. An id is the path below the root.

    With `unlabelled`, images may lie anywhere: if any is outside of class folders, none counts as labelled.
    """
    sections = {PARTS[path.name.lower()]: path for path in _subfolders(root) if path.name.lower() in PARTS}
    if "train" not in sections:
        sections = {"train": root}
    if unlabelled and _images(sections["train"].iterdir()):
        files = _images(sections["train"].rglob("*"))
        entries = [Entry(str(file.relative_to(root)), file, UNLABELLED) for file in files]
        return from_entries(root.name or "folder", entries, resize=resize, white=white)
    entries = []
    for part, section in sections.items():
        class_folders = _subfolders(section)
        if not class_folders:
            wanted = "image" if unlabelled else "class folders; put the images of each class into a folder of its name"
            raise UserError(f"{section} holds no {wanted}")
        for class_folder in class_folders:
            files = _images(class_folder.rglob("*"))
            if not files and part == "train":
                raise UserError(f"the class folder {class_folder} holds no image; fill it or remove it")
            entries += [Entry(str(file.relative_to(root)), file, class_folder.name, part) for file in files]
    return from_entries(root.name or "folder", entries, resize=resize, white=white)


def table(
    path: Path,
    *,
    label_column: str = "label",
    group_column: str | None = None,
    resize: int | None = None,
    unlabelled: bool = False,
    white: float | None = None,
) -> Data:
    """A .csv or .parquet with path and label, optionally id and split; paths count from the table's folder.

    With `unlabelled`, there may be no label; then only the training rows count.
    """
    rows = parquet_rows(path) if path.suffix == ".parquet" else csv_rows(path)
    if not rows:
        raise UserError(f"{path} has no rows")
    without = unlabelled and all(row.get(label_column) in (None, "") for row in rows)
    needed = ["path", *([] if without else [label_column]), *([group_column] if group_column else [])]
    if missing := [name for name in needed if name not in rows[0]]:
        raise UserError(
            f"{path} lacks the column {' and '.join(missing)}; it has {', '.join(map(str, rows[0]))}. "
            "--label-column and --group-column name others"
        )
    if not without:
        check_labels([row[label_column] for row in rows], label_column, lambda i: f"{path}, row {i + 2}")
    entries: list[Entry] = []
    seen: dict[str, int] = {}
    for number, row in enumerate(rows, start=2):  # row 1 of a table is its head
        for name in needed:
            if row[name] in (None, ""):
                raise UserError(f"{path}, row {number}: {name} is empty")
        sample_id = str(row.get("id") or row["path"])
        if sample_id in seen:
            raise UserError(
                f"{path}: the id {sample_id!r} stands in rows {seen[sample_id]} and {number}; ids must differ"
            )
        seen[sample_id] = number
        part = str(row.get("split") or "train").lower()
        if part not in PARTS:
            raise UserError(f"{path}, row {number}: split is {part!r}; write train, val or test")
        label = UNLABELLED if without else str(row[label_column])
        group = None if group_column is None else str(row[group_column])
        if PARTS[part] == "train" or not without:
            entries.append(Entry(sample_id, path.parent / str(row["path"]), label, PARTS[part], group))
    return from_entries(path.stem, entries, resize=resize, white=white)


def _images(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if path.suffix.lower() in SUFFIXES and path.is_file())


def _subfolders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def from_entries(name: str, entries: Sequence[Entry], *, resize: int | None = None, white: float | None = None) -> Data:
    """Data over image files: their headers are read, broken ones are set aside, the rest must fit together.

    `white` is what becomes 255 in images of over 8 bits; if not given, it is found.
    """
    if resize is not None and resize < 1:
        raise UserError(f"--image-size {resize} must be at least 1")
    speakable, left_out = _speakable(entries)
    with ThreadPoolExecutor() as pool:
        headers = list(pool.map(_header_or_reason, [entry.path for entry in speakable]))
    fine: list[tuple[Entry, Header]] = []
    for entry, found in zip(speakable, headers, strict=True):
        if isinstance(found, str):
            left_out.append((entry, entry.id, found))
        else:
            fine.append((entry, found))
    unreadable = [(spelled, reason) for _, spelled, reason in left_out]
    if not fine:
        example = f", such as {unreadable[0][0]}: {unreadable[0][1]}" if unreadable else ""
        raise UserError(f"{name}: none of {len(entries)} files can be read as an image{example}")
    channels = 1 if all(head.grey for _, head in fine) else 3
    image_size = resize if resize is not None else _size_for([head.size for _, head in fine])
    width, height = (image_size, image_size) if image_size is not None else fine[0][1].size
    classes = class_names(name, [entry.label for entry, _ in fine if entry.part == "train"])
    for entry, spelled, reason in left_out:
        if entry.label not in classes:
            raise UserError(
                f"{name}: no training file of the class {entry.label!r} can be used, such as {spelled}: {reason}"
            )
    deep = [entry.path for entry, head in fine if head.deep]
    if deep and white is None:
        white = white_of(deep)
    broken: dict[Path, str] = {}

    def part(which: str) -> Samples | None:
        chosen = [entry for entry, _ in fine if entry.part == which]
        if not chosen:
            return None
        groups = [entry.group for entry in chosen if entry.group is not None]  # all have one, or none
        return Samples(
            inputs=ImageFiles([entry.path for entry in chosen], (channels, height, width), image_size, white, broken),
            labels=numbered([entry.label for entry in chosen], classes, lambda i: f"{name}: {chosen[i].id}"),
            truth=None,
            ids=[entry.id for entry in chosen],
            paths=[str(entry.path.absolute()) for entry in chosen],
            groups=groups or None,
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
        image_size=image_size if resize is None else None,
        unreadable=unreadable,
        white=white,
    )


def _speakable(entries: Sequence[Entry]) -> tuple[list[Entry], list[tuple[Entry, str, str]]]:
    """The entries whose ids can be written down; and the others, each with a spelling that can, and what is wrong."""
    fine, others = [], []
    for entry in entries:
        spelled = as_text(entry.id)
        if spelled == entry.id:
            fine.append(entry)
        else:
            others.append((entry, spelled, NO_TEXT))
    return fine, others


def _header_or_reason(path: Path) -> Header | str:
    try:
        return header(path)
    except UnreadableImage as error:
        return "there is no such file" if not path.exists() else str(error)


def _size_for(sizes: Sequence[tuple[int, int]]) -> int | None:
    """A size for images of many sizes: that of the shorter side, in the middle of all, up to 64. None if all agree."""
    if len(set(sizes)) == 1:
        return None
    return min(_LARGEST_CHOSEN, sorted(min(size) for size in sizes)[len(sizes) // 2])
