"""What the program keeps on this machine to be faster next time: decoded images, and features.

Everything here can be computed again. Fetched data sets (`$SELFADAPT_HOME/data`) are not part of it.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from selfadapt.core.cache_dir import cache_dir
from selfadapt.data.row_cache import rows_folder

Kind = Literal["decoded", "features"]


@dataclass(frozen=True, kw_only=True)
class Kept:
    """One set of decoded images, or the features of one network with its weights and preprocessing."""

    kind: Kind
    path: Path
    bytes: int
    used: float  # when it was last used, in seconds since 1970
    description: str  # what it is of, where that is known


def kept() -> list[Kept]:
    """All that is kept, what was used last first."""
    found = [
        _kept(kind, path)
        for kind, root in _roots().items()
        if root.is_dir()
        for path in root.iterdir()
        if path.is_dir()
    ]
    return sorted(found, key=lambda entry: -entry.used)


def forget(entries: Sequence[Kept]) -> int:
    """Remove these; the bytes that this gave back."""
    for entry in entries:
        shutil.rmtree(entry.path, ignore_errors=True)
    return sum(entry.bytes for entry in entries if not entry.path.exists())


def _roots() -> dict[Kind, Path]:
    return {"decoded": cache_dir() / "decoded", "features": rows_folder()}


def _kept(kind: Kind, path: Path) -> Kept:
    status = [file.stat() for file in path.iterdir() if file.is_file()]
    return Kept(
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
