"""Image files inside tar shards, addressed as SHARD.tar/MEMBER, and ordinary files by the same functions.

    FOLDER/train-000000.tar    members 000000012.jpg, 000000012.cls, …: the layout of WebDataset
    FOLDER/index.rows           a row for each sample, memory-mapped: its shard, the place of its image, size and kind
    FOLDER/index.json          what the rows refer to (packed_folder.py)

The number in a member's name is its row in the index, so an image is found without reading the headers of a shard.
"""

import mmap
import os
from functools import lru_cache
from pathlib import Path

import numpy as np

from selfadapt.core.regular_files import check_regular, read_regular
from selfadapt.core.typed_json import parse

INDEX_ROWS, INDEX_NAMES = "index.rows", "index.json"
INDEX_ROW = np.dtype(
    [
        ("shard", "<u4"), ("offset", "<u8"), ("bytes", "<u8"), ("label", "<i4"), ("split", "u1"), ("suffix", "u1"),
        ("width", "<u4"), ("height", "<u4"), ("grey", "u1"), ("deep", "u1"),
    ]
)  # fmt: skip
IndexRows = np.ndarray[tuple[int], np.dtype[np.void]]


def is_packed(path: Path) -> bool:
    """Whether a path names a member of a shard."""
    return path.parent.suffix == ".tar" and path.parent.is_file()


def image_bytes(path: Path) -> bytes:
    """Read an image file, packed or not; raise OSError if that fails."""
    if not is_packed(path):
        return read_regular(path)
    row = _row_of(path)
    start, size = int(row["offset"]), int(row["bytes"])
    content = bytes(_mapped(path.parent)[start : start + size])
    if len(content) != size:
        raise OSError(f"{path.parent} is shorter than its index says")
    return content


def image_size_and_time(path: Path) -> tuple[int, int]:
    """Return the bytes of an image file and the time of its last change, in nanoseconds; raise OSError if missing."""
    if not is_packed(path):
        status = path.stat()
        return status.st_size, status.st_mtime_ns
    return int(_row_of(path)["bytes"]), path.parent.stat().st_mtime_ns


def image_exists(path: Path) -> bool:
    """Whether there is such an image file, packed or not."""
    try:
        return path.exists() if not is_packed(path) else _row_of(path) is not None
    except OSError:
        return False


@lru_cache(maxsize=16)
def index_rows(folder: Path) -> IndexRows:
    """Map the index of a folder of shards; raise ValueError or OSError if it is damaged."""
    check_regular(folder / INDEX_ROWS)
    rows: IndexRows = np.load(folder / INDEX_ROWS, mmap_mode="r", allow_pickle=False)
    if rows.dtype != INDEX_ROW or rows.ndim != 1:
        raise ValueError(f"{folder / INDEX_ROWS} has other columns than an index")
    return rows


@lru_cache(maxsize=16)
def _shard_names(folder: Path) -> list[str]:
    names = parse(read_regular(folder / INDEX_NAMES))["shards"]
    return [str(name) for name in names]


def _row_of(path: Path) -> np.void:
    folder = path.parent.parent
    try:
        row: np.void = index_rows(folder)[int(path.stem)]
        if _shard_names(folder)[int(row["shard"])] == path.parent.name:
            return row
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise OSError(f"{path} is not in the index of {folder} ({error})") from error
    raise OSError(f"{path} is not in the index of {folder}")


@lru_cache(maxsize=1024)
def _mapped(shard: Path) -> mmap.mmap:
    check_regular(shard)
    with open(shard, "rb") as file:
        return mmap.mmap(file.fileno(), os.fstat(file.fileno()).st_size, access=mmap.ACCESS_READ)
