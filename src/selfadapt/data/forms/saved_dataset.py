"""Hugging Face datasets that `save_to_disk` wrote: a Dataset, or a DatasetDict with its splits.

Class labels are read by their names. The bytes of an Image column become files below $SELFADAPT_HOME/extracted, where
everything that reads image files finds them; they can be removed at any time. An image without an id is named by the
hash of its bytes.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from selfadapt.core.atomic_files import atomic_folder
from selfadapt.core.cache_dir import cache_dir
from selfadapt.core.errors import UserError
from selfadapt.core.regular_files import read_regular
from selfadapt.data.forms.form import Changes, Form
from selfadapt.data.forms.plain_tables import relabelled
from selfadapt.data.images.decode import SUFFIXES
from selfadapt.data.row_cache import content_digest
from selfadapt.data.sample_ids import content_ids

_SPLITS = ("train", "val", "valid", "validation", "test")


class SavedDataset(Form):
    """A folder that `save_to_disk` of the package `datasets` wrote."""

    def holds(self, path: Path) -> bool:
        return (path / "dataset_dict.json").is_file() or (path / "state.json").is_file()

    def column_names(self, path: Path) -> list[str]:
        (_, dataset), *_ = splits_of(_load(path))
        image = _image_column(dataset)
        return [*dataset.column_names, "split", *([] if image is None else ["id", "path"])]

    def rows(self, path: Path) -> list[dict[str, Any]]:
        return [row for split, dataset in splits_of(_load(path)) for row in _rows(split, dataset)]

    def write(self, path: Path, out: Path, column: str, changes: Changes) -> None:
        with atomic_folder(out) as draft:
            relabelled_dataset(_load(path), column, changes).save_to_disk(str(draft))


def relabelled_dataset(loaded: Any, column: str, changes: Changes) -> Any:
    """A Dataset or DatasetDict with these labels, and all features and the order of columns as they were.

    Positions count through the splits. A label of a ClassLabel column is given by its name or number.
    """
    if not isinstance(loaded, dict):
        return _relabelled(loaded, column, changes)
    changed, first = type(loaded)(loaded), 0
    for split, dataset in splits_of(loaded):
        last = first + len(dataset)
        own = {i - first: label for i, label in changes.items() if first <= i < last}
        changed[split], first = _relabelled(dataset, column, own), last
    return changed


def _relabelled(dataset: Any, column: str, changes: Changes) -> Any:
    feature, given = dataset.features[column], list(dataset[column])
    labels = relabelled(given, changes)
    if hasattr(feature, "names"):
        labels = [feature.str2int(label) if isinstance(label, str) else label for label in labels]
    order, features = dataset.column_names, dataset.features
    replaced = dataset.remove_columns(column).add_column(column, labels).select_columns(order).cast(features)
    removed = {position for position, label in changes.items() if label is None}
    return replaced.select([i for i in range(len(given)) if i not in removed]) if removed else replaced


def _load(path: Path) -> Any:
    try:
        from datasets import load_from_disk
    except ImportError as error:
        raise UserError(f"reading {path} needs datasets: pip install 'selfadapt[datasets]'") from error
    try:
        return load_from_disk(str(path))
    except Exception as error:  # datasets and pyarrow raise many types of errors on wrong content
        raise UserError(f"{path} cannot be read as a dataset saved to disk: {error}") from error


def splits_of(loaded: Any) -> list[tuple[str, Any]]:
    """The splits of a Dataset or DatasetDict to train or evaluate on."""
    if not isinstance(loaded, Mapping):
        return [("train", loaded)]
    known = [(name, dataset) for name, dataset in loaded.items() if name.lower() in _SPLITS]
    if not known:
        raise UserError(f"the dataset has the splits {', '.join(loaded)}; name one of them train")
    if len(known) < len(loaded):
        others = ", ".join(name for name in loaded if name.lower() not in _SPLITS)
        warnings.warn(f"only the splits train, val and test of the dataset are used, not {others}", stacklevel=2)
    return known


def _rows(split: str, dataset: Any) -> Iterator[dict[str, Any]]:
    columns, image = dict[str, Sequence[Any]](), _image_column(dataset)
    for name, feature in dataset.features.items():
        if name != image:
            values = list(dataset[name])
            columns[name] = _label_names(feature, values) if hasattr(feature, "names") else values
    columns["split"] = [split] * len(dataset)
    if image is not None:
        files, hashes = _extracted(split, dataset, image)
        columns = {"id": hashes, **columns, "path": files}
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(columns, row, strict=True))


def _label_names(feature: Any, values: Sequence[Any]) -> list[Any]:
    """Class names of a ClassLabel column; None for an item without a label."""
    return [None if value is None or value < 0 else feature.int2str(value) for value in values]


def _image_column(dataset: Any) -> str | None:
    return next((name for name, own in dataset.features.items() if type(own).__name__ == "Image"), None)


def _extracted(split: str, dataset: Any, column: str) -> tuple[list[str], list[str]]:
    """The files of the images of a split, written where they are missing, and their ids."""
    from datasets import Image

    images = [item[column] or {} for item in dataset.select_columns(column).cast_column(column, Image(decode=False))]
    contents = [_content(image) for image in images]
    ids = content_ids(split, contents)
    digest = content_digest(*(sample_id.encode() for sample_id in ids)).hex()
    folder = cache_dir() / "extracted" / digest
    suffixes = [PurePath(image.get("path") or "").suffix.lower() for image in images]
    names = [f"{i:07d}{suffix if suffix in SUFFIXES else '.png'}" for i, suffix in enumerate(suffixes)]
    if not folder.is_dir():
        with atomic_folder(folder) as draft:
            for name, content in zip(names, contents, strict=True):
                (draft / name).write_bytes(content)
    return [str(folder / name) for name in names], ids


def _content(image: Mapping[str, Any]) -> bytes:
    """The bytes of an image in the table, or of the file that it names; none if there is neither."""
    if image.get("bytes") is not None:
        return bytes(image["bytes"])
    try:
        return read_regular(Path(image["path"]))
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return b""  # reported as an unreadable image
