"""Data that a user holds in memory, stored as files that a run can open again, for `selfadapt.train`.

pandas or polars frame               data.csv; the index of pandas becomes the column id
Dataset or DatasetDict of datasets   data/, as save_to_disk writes it
torch Dataset of (input, label)      data/ with PNG files and labels.csv, or data.npz for vectors
"""

import csv
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from selfadapt.core.atomic_files import atomic_folder, atomic_path, atomic_write
from selfadapt.core.errors import UserError
from selfadapt.data.forms.frames import package_of, row_ids, table_rows
from selfadapt.data.images.displayed import as_image

if TYPE_CHECKING:
    from PIL.Image import Image

_NAME = "data"


def store(data: Any, folder: Path) -> Path:
    """Write data from memory below a folder and return what to open.

    Raises:
        UserError: If the data are of another kind, or cannot be stored without loss.
    """
    package = package_of(data)
    if package in ("pandas", "polars"):
        return _store_frame(data, folder / f"{_NAME}.csv")
    if package == "datasets" or hasattr(data, "save_to_disk"):
        with atomic_folder(folder / _NAME) as draft:
            data.save_to_disk(str(draft))
        return folder / _NAME
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Sequence | dict):
        return _store_items(data, folder)
    raise UserError(
        f"{type(data).__name__} is not a kind of data; pass a path, a DataFrame, or a Dataset of torch or datasets"
    )


def stored_in(folder: Path) -> Path | None:
    """What `store` wrote below a folder, if anything."""
    candidates = (folder / f"{_NAME}.csv", folder / f"{_NAME}.npz", folder / _NAME / "labels.csv", folder / _NAME)
    return next((path for path in candidates if path.exists()), None)


def forget(folder: Path) -> None:
    """Remove what `store` wrote below a folder in which no run was started."""
    shutil.rmtree(folder / _NAME, ignore_errors=True)
    for suffix in (".csv", ".npz"):
        (folder / f"{_NAME}{suffix}").unlink(missing_ok=True)


def _store_frame(frame: Any, path: Path) -> Path:
    ids, rows = row_ids(frame), table_rows(frame)
    if len(set(ids)) < len(ids):
        raise UserError("the index of the frame repeats a value; make it unique, for example by frame.reset_index()")
    names = [str(name) for name in frame.columns if name != "id"]
    with atomic_write(path) as file:
        writer = csv.writer(file)
        writer.writerow(["id", *names])
        for sample_id, row in zip(ids, rows, strict=True):
            writer.writerow([sample_id, *(_cell(name, row[name]) for name in row if name != "id")])
    return path


def _cell(name: Any, value: Any) -> str:
    if value is None or value != value or str(value) in ("<NA>", "NaT"):
        return ""
    return str(Path(value).absolute()) if name == "path" else str(value)


def _store_items(dataset: Any, folder: Path) -> Path:
    """Store a torch Dataset. Items are pairs of an input and a label; a label is a number or a name."""
    classes = getattr(dataset, "classes", None)
    first = _input(dataset[0], 0)
    if isinstance(first, np.ndarray) and first.ndim == 1:
        pairs = [(_input(dataset[i], i), _label(dataset[i], classes)) for i in range(len(dataset))]
        path = folder / f"{_NAME}.npz"
        with atomic_path(path) as draft, open(draft, "wb") as file:
            values = np.stack([np.asarray(values, np.float32) for values, _ in pairs])
            ids = np.arange(len(pairs)).astype(str)
            np.savez(file, x_train=values, y_train=np.array([label for _, label in pairs]), id_train=ids)
        return path
    with atomic_folder(folder / _NAME) as root, atomic_write(root / "labels.csv") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "path", "label"])
        for i in range(len(dataset)):
            item = dataset[i]
            _image(_input(item, i), i).save(root / f"{i:07d}.png")
            writer.writerow([i, f"{i:07d}.png", _label(item, classes)])
    return folder / _NAME / "labels.csv"


def _input(item: Any, position: int) -> Any:
    if not isinstance(item, tuple | list) or len(item) < 2:
        raise UserError(f"item {position} of the dataset is not a pair of an input and a label")
    return item[0].numpy() if isinstance(item[0], Tensor) else item[0]


def _label(item: Any, classes: Sequence[str] | None) -> str:
    label = item[1].item() if isinstance(item[1], Tensor | np.generic) else item[1]
    return str(classes[label]) if classes is not None and isinstance(label, int) else str(label)


def _image(value: Any, position: int) -> "Image":
    image = as_image(value)
    if image is None:
        raise UserError(
            f"item {position} of the dataset is not an image of Pillow, of uint8 or of values within 0..1; pass the "
            "dataset without Normalize"
        )
    return image
