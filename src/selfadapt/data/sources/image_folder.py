"""Image files of a user: a folder of class folders, or a table of paths and labels."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median_high

from selfadapt.core.errors import UserError, check_least
from selfadapt.core.file_names import INVALID_FILE_NAME, as_text
from selfadapt.data.dataset import Data, Samples
from selfadapt.data.images.decode import SUFFIXES, UnreadableImage
from selfadapt.data.images.metadata import Header, header, white_of
from selfadapt.data.images.storage import ImageFiles
from selfadapt.data.labels.class_names import UNLABELLED, class_names, numbered
from selfadapt.data.tabular.table_file import SPLIT_NAMES, TableColumns, read_sample_rows

SMALL_IMAGE = 32  # pixels on the shorter side, up to which networks pretrained on photos are of little use
_MOST_HEADERS = 32  # images inspected to estimate the size of all
_LARGEST_DEFAULT = 64  # pixels; larger images are slow to train on from scratch, so --image-size must ask for them


@dataclass(frozen=True)
class ImageEntry:
    """An image file with its label, as a folder or a table lists it."""

    id: str
    path: Path
    label: str
    split: str = "train"
    group: str | None = None


def are_photos(paths: Iterable[Path]) -> bool:
    """Whether the first readable images have a shorter side of more than 32 pixels in the median."""
    images = islice((path for path in paths if path.suffix.lower() in SUFFIXES), _MOST_HEADERS)
    return are_photo_sizes([found.size for found in map(_header_or_reason, images) if not isinstance(found, str)])


def are_photo_sizes(sizes: Sequence[tuple[int, int]]) -> bool:
    """Whether the first of these images have a shorter side of more than 32 pixels in the median."""
    return not sizes or median_high(min(size) for size in sizes[:_MOST_HEADERS]) > SMALL_IMAGE


def folder_data(root: Path, *, resize: int | None = None, unlabelled: bool = False, white: float | None = None) -> Data:
    """Open a folder of class folders, or such folders under train/, val/ and test/. An id is the path below the root.

    With `unlabelled`, images may lie anywhere: if any is outside of class folders, all count as unlabelled.
    """
    entries = folder_entries(root, unlabelled=unlabelled)
    return data_from_headers(root.name or "folder", *read_headers(entries), resize=resize, white=white)


def folder_entries(root: Path, *, unlabelled: bool = False) -> list[ImageEntry]:
    """List the image files of a folder with their labels and splits."""
    split_folders = {
        SPLIT_NAMES[path.name.lower()]: path for path in _subfolders(root) if path.name.lower() in SPLIT_NAMES
    }
    if "train" not in split_folders:
        split_folders = {"train": root}
    if unlabelled and _images(split_folders["train"].iterdir()):
        files = _images(split_folders["train"].rglob("*"))
        return [ImageEntry(str(file.relative_to(root)), file, UNLABELLED) for file in files]
    entries = []
    for split, split_folder in split_folders.items():
        class_folders = _subfolders(split_folder)
        if not class_folders:
            needed = "images" if unlabelled else "class folders; put the images of each class into a folder of its name"
            raise UserError(f"{split_folder} contains no {needed}")
        for class_folder in class_folders:
            files = _images(class_folder.rglob("*"))
            if not files and split == "train":
                raise UserError(f"the class folder {class_folder} contains no images; add some or remove it")
            entries += [ImageEntry(str(file.relative_to(root)), file, class_folder.name, split) for file in files]
    return entries


def image_table_entries(path: Path, columns: TableColumns, *, unlabelled: bool = False) -> list[ImageEntry]:
    """List the image files of a .csv or .parquet with their labels and splits; paths are relative to its folder.

    With `unlabelled`, labels may be missing; then only the training rows are used.
    """
    rows = read_sample_rows(path, columns, images=True, unlabelled=unlabelled)
    return [ImageEntry(row.id, path.parent / str(row.values["path"]), row.label, row.split, row.group) for row in rows]


def _images(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if path.suffix.lower() in SUFFIXES and path.is_file())


def _subfolders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def data_from_headers(
    name: str,
    readable: Sequence[tuple[ImageEntry, Header]],
    skipped: Sequence[tuple[ImageEntry, str]] = (),
    *,
    resize: int | None = None,
    white: float | None = None,
) -> Data:
    """Create a data set from image files whose headers are known.

    Args:
        name: Name of the data set.
        readable: The files with their labels and headers.
        skipped: The files that are unreadable, with the reason.
        resize: Size of the square that images are resized to. By default, files of different sizes are resized to
            the median of their shorter sides, at most 64 pixels.
        white: Pixel value that becomes 255 in images of more than 8 bits; by default it is determined.

    Raises:
        UserError: All files, or all training files of a class, are unreadable.
    """
    check_least({"--image-size": resize})
    if not readable:
        example = f", such as {as_text(skipped[0][0].id)}: {skipped[0][1]}" if skipped else ""
        raise UserError(f"{name}: none of {len(skipped)} files can be read as an image{example}")
    channels = 1 if all(head.grey for _, head in readable) else 3
    image_size = resize if resize is not None else _default_size([head.size for _, head in readable])
    width, height = (image_size, image_size) if image_size is not None else readable[0][1].size
    classes = class_names(name, [entry.label for entry, _ in readable if entry.split == "train"])
    for entry, reason in skipped:
        if entry.label not in classes:
            raise UserError(
                f"{name}: no training file of the class {entry.label!r} can be used, such as {as_text(entry.id)}: "
                f"{reason}"
            )
    deep = [entry.path for entry, head in readable if head.deep]
    if deep and white is None:
        white = white_of(deep)
    broken: dict[Path, str] = {}  # shared by all splits
    by_split: dict[str, list[ImageEntry]] = {}
    for entry, _ in readable:
        by_split.setdefault(entry.split, []).append(entry)

    def samples(chosen: Sequence[ImageEntry]) -> Samples:
        groups = [entry.group for entry in chosen if entry.group is not None]  # of all entries or of none
        return Samples(
            inputs=ImageFiles([entry.path for entry in chosen], (channels, height, width), image_size, white, broken),
            labels=numbered([entry.label for entry in chosen], classes, lambda i: f"{name}: {chosen[i].id}"),
            ids=[entry.id for entry in chosen],
            paths=[str(entry.path.absolute()) for entry in chosen],
            groups=groups or None,
        )

    splits = {split: samples(chosen) for split, chosen in by_split.items()}
    return Data.of(
        splits,
        name=name,
        classes=classes,
        augment="crop-flip",
        image_size=image_size if resize is None else None,
        unreadable=[(as_text(entry.id), reason) for entry, reason in skipped],
        white=white,
    )


def read_headers(
    entries: Sequence[ImageEntry],
) -> tuple[list[tuple[ImageEntry, Header]], list[tuple[ImageEntry, str]]]:
    """Return the readable entries with their headers, and the others with the reason."""
    skipped = [(entry, INVALID_FILE_NAME) for entry in entries if as_text(entry.id) != entry.id]
    named = [entry for entry in entries if as_text(entry.id) == entry.id]
    readable: list[tuple[ImageEntry, Header]] = []
    with ThreadPoolExecutor() as pool:
        for entry, found in zip(named, pool.map(_header_or_reason, [entry.path for entry in named]), strict=True):
            if isinstance(found, str):
                skipped.append((entry, found))
            else:
                readable.append((entry, found))
    return readable, skipped


def _header_or_reason(path: Path) -> Header | str:
    try:
        return header(path)
    except UnreadableImage as error:
        return "there is no such file" if not path.exists() else str(error)


def _default_size(sizes: Sequence[tuple[int, int]]) -> int | None:
    """Return the median of the shorter sides, at most 64 pixels; None if all images have the same size."""
    if len(set(sizes)) == 1:
        return None
    return min(_LARGEST_DEFAULT, median_high(min(size) for size in sizes))
