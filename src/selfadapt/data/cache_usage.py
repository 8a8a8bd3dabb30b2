"""Contents of the cache: decoded images and features.

All of it can be computed again. Downloaded data sets (`$SELFADAPT_HOME/data`) are not part of the cache.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from selfadapt.core.cache_dir import cache_dir
from selfadapt.data.row_cache import rows_folder


@dataclass(frozen=True, kw_only=True)
class CacheEntry:
    """A set of decoded images, or the features of one network with its weights and preprocessing."""

    kind: Literal["decoded", "features"]
    path: Path
    bytes: int
    used: float  # time of the last use, in seconds since 1970
    description: str


def cache_entries() -> list[CacheEntry]:
    """Return all entries, the most recently used first."""
    decoded = [_entry("decoded", path) for path in _folders(cache_dir() / "decoded")]
    features = [_entry("features", path) for path in _folders(rows_folder())]
    return sorted(decoded + features, key=lambda entry: -entry.used)


def remove_entries(entries: Sequence[CacheEntry]) -> int:
    """Remove entries; return the number of bytes that were freed."""
    for entry in entries:
        shutil.rmtree(entry.path, ignore_errors=True)
    return sum(entry.bytes for entry in entries if not entry.path.exists())


def _folders(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_dir()] if root.is_dir() else []


def _entry(kind: Literal["decoded", "features"], path: Path) -> CacheEntry:
    status = [file.stat() for file in path.iterdir() if file.is_file()]
    return CacheEntry(
        kind=kind,
        path=path,
        bytes=sum(file.st_size for file in status),
        used=max((file.st_mtime for file in status), default=path.stat().st_mtime),
        description=_description(path),
    )


def _description(path: Path) -> str:
    try:
        about = json.loads((path / "about.json").read_text())
        return ", ".join(f"{name} {value}" for name, value in about.items() if name in ("network", "encoder", "frame"))
    except (OSError, ValueError):
        return ""
