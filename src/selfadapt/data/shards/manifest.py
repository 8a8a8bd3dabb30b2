"""The manifest of a folder of feature shards, and the files themselves as they are written.

    features/
      manifest.json   {"format": "selfadapt-features", "version": 1, "dimensions": 512, "dtype": "float16",
                       "shards": [{"file": "00000.npz", "samples": 4096, "sha256": "…"}, …], "source": {…}}
      00000.npz       arrays `features`, and optionally `ids` and `labels`; uncompressed, so that they can be mapped
      00001.npz       …

The order of the samples is that of the list. `source` is whatever the writer wants to find again, such as the network.
Each file is written atomically before the manifest lists it, so an interrupted writer resumes after the last shard.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from selfadapt.core.atomic_files import atomic_path, atomic_write
from selfadapt.core.errors import UserError
from selfadapt.core.regular_files import read_regular, sha256_of
from selfadapt.core.typed_json import parse

MANIFEST = "manifest.json"
_FORMAT, _VERSION = "selfadapt-features", 1
_DTYPES = ("float16", "float32")

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class ShardEntry:
    """One file of the folder."""

    file: str
    samples: int
    sha256: str

    def is_intact(self, folder: Path) -> bool:
        """Whether the file is still the one that was written. Reads all of it."""
        path = folder / self.file
        return path.is_file() and sha256_of(path) == self.sha256


@dataclass(frozen=True)
class Manifest:
    dimensions: int
    dtype: str
    shards: tuple[ShardEntry, ...]
    source: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        with atomic_write(folder / MANIFEST) as file:
            json.dump({"format": _FORMAT, "version": _VERSION, **asdict(self)}, file, indent=1)
            file.write("\n")


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of this folder, or None without one."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        content = parse(read_regular(path))
        if content["format"] != _FORMAT or content["version"] != _VERSION:
            raise UserError(f"{path} describes {content['format']!r} version {content['version']}, not {_FORMAT} 1")
        shards = tuple(ShardEntry(str(x["file"]), int(x["samples"]), str(x["sha256"])) for x in content["shards"])
        manifest = Manifest(int(content["dimensions"]), str(content["dtype"]), shards, content.get("source", {}))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not a manifest of feature shards ({error}); write the features again") from error
    outside = [entry.file for entry in shards if Path(entry.file).name != entry.file]
    if outside:
        raise UserError(f"{path} names {outside[0]}, which is not a file of this folder")
    return manifest


def write_shard(
    folder: Path, number: int, features_nF: Array, *, ids: Array | None = None, labels: Array | None = None
) -> ShardEntry:
    """Write these samples as the shard of this number, whole or not at all. The manifest is written separately."""
    if str(features_nF.dtype) not in _DTYPES or features_nF.ndim != 2:
        raise ValueError(f"features must be a table of {' or '.join(_DTYPES)}, not {features_nF.dtype}")
    columns = {"ids": ids, "labels": labels}
    arrays = {"features": features_nF} | {name: np.asarray(own) for name, own in columns.items() if own is not None}
    if any(len(array) != len(features_nF) for array in arrays.values()):
        raise ValueError(f"features, ids and labels differ in length: {[len(array) for array in arrays.values()]}")
    path = folder / f"{number:05d}.npz"
    with atomic_path(path) as draft, open(draft, "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    return ShardEntry(path.name, len(features_nF), sha256_of(path))
