"""One shard: a .npy, .npz or .parquet file, or an array. Columns are mapped from the file wherever that is possible.

An .npz holds `features` and optionally `ids` and `labels`, or the names that `selfadapt embed` writes to a single file.
A .parquet holds them as columns, with the features as lists of numbers; without a column `features`, all its numeric
columns are the features.
"""

import mmap
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from selfadapt.core.array_files import Array, read_array
from selfadapt.core.errors import UserError

Column = Literal["features", "ids", "labels"]
SUFFIXES = (".npy", ".npz", ".parquet")
_NAMES: dict[Column, tuple[str, ...]] = {
    "features": ("features", "x_train"),
    "ids": ("ids", "id", "id_train"),
    "labels": ("labels", "label", "y_train"),
}


@dataclass(frozen=True)
class Shard:
    """Samples of one file, or one array. `column` returns None for what it does not hold."""

    name: str
    samples: int
    dimensions: int
    column: Callable[[Column], Array | None]

    def features(self) -> Array:
        found = self.column("features")
        assert found is not None
        return found


def shard_of_array(features_NF: Array, name: str = "features") -> Shard:
    _check(features_NF, name)
    samples, dimensions = features_NF.shape
    return Shard(name, samples, dimensions, lambda column: features_NF if column == "features" else None)


def shard_of_file(path: Path) -> Shard:
    """Open a file. Raises a UserError that names it if it does not hold features."""
    try:
        column: Callable[[Column], Array | None]
        if path.suffix == ".parquet":
            table = _Parquet(path)
            return Shard(str(path), table.samples, table.dimensions, table.column)
        column = _Npz(path).column if path.suffix == ".npz" else _Npy(path).column
        features_NF = column("features")
        if features_NF is None:
            raise UserError(f"{path} has no array `features`")
        _check(features_NF, str(path))
        samples, dimensions = features_NF.shape
        return Shard(str(path), samples, dimensions, column)
    except UserError:
        raise
    except Exception as error:  # numpy, zipfile and pyarrow raise many types of errors on wrong content
        raise UserError(f"{path} cannot be read: {error}; write it again") from error


def release(array: Array) -> None:
    """Give the pages of a mapped file back, which otherwise count as memory of this process."""
    owner: Any = array
    mode = "c"
    while isinstance(owner, np.ndarray):
        mode, owner = getattr(owner, "mode", mode), owner.base
    # The changes of a private map (mode c) would be lost.
    if mode != "c" and isinstance(owner, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        owner.madvise(mmap.MADV_DONTNEED)


def _check(features_NF: Array, name: str) -> None:
    if features_NF.ndim != 2 or features_NF.dtype.kind not in "fiub":
        found = f"{features_NF.dtype} of shape {features_NF.shape}"
        raise UserError(f"{name} must hold a table of numbers, a row for each sample, but it holds {found}")


@dataclass(frozen=True)
class _Npy:
    path: Path

    def column(self, column: Column) -> Array | None:
        return np.load(self.path, mmap_mode="r", allow_pickle=False) if column == "features" else None


@dataclass(frozen=True)
class _Npz:
    path: Path

    def column(self, column: Column) -> Array | None:
        with zipfile.ZipFile(self.path) as archive:
            present = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            name = next((name for name in _NAMES[column] if name in present), None)
            if name is None:
                return None
            if present[name].compress_type == zipfile.ZIP_STORED and column == "features":
                return _mapped(self.path, present[name].header_offset)
        return read_array(self.path, member=name)


def _mapped(path: Path, offset: int) -> Array:
    """The array of an uncompressed member, mapped from its place in the archive."""
    with open(path, "rb") as file:
        file.seek(offset + 26)  # lengths of the name and of the extra field in the local header
        lengths = np.frombuffer(file.read(4), "<u2")
        file.seek(offset + 30 + int(lengths.sum()))
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran_order, dtype = read_header(file)
        if dtype.hasobject:
            raise ValueError("it holds objects")
        return np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran_order else "C")


@dataclass(frozen=True)
class _Parquet:
    path: Path

    @cached_property
    def _file(self) -> Any:
        try:
            from pyarrow.parquet import ParquetFile
        except ImportError as error:
            raise UserError(f"{self.path} needs pyarrow; install it with: pip install 'selfadapt[parquet]'") from error
        return ParquetFile(self.path)

    @property
    def samples(self) -> int:
        return int(self._file.metadata.num_rows)

    @cached_property
    def dimensions(self) -> int:
        first = self.column("features")
        assert first is not None
        _check(first, str(self.path))
        return int(first.shape[1])

    def column(self, column: Column) -> Array | None:
        schema = self._file.schema_arrow
        name = next((name for name in _NAMES[column] if name in schema.names), None)
        if name is None:
            return self._numeric(schema) if column == "features" else None
        values = self._file.read(columns=[name]).column(0).combine_chunks()
        if column != "features":
            array: Array = np.array(values.to_pylist())
            return array
        if values.null_count:
            raise ValueError(f"the column {name} has {values.null_count} missing rows")
        lengths = set(values.value_lengths().to_pylist()) or {0}
        if len(lengths) > 1:
            raise ValueError(f"the lists of the column {name} differ in length")
        flat: Array = values.flatten().to_numpy(zero_copy_only=False)
        return flat.reshape(len(values), *lengths)

    def _numeric(self, schema: Any) -> Array:
        others = {name for names in _NAMES.values() for name in names}
        numeric = [
            own.name for own in schema if own.name not in others and np.dtype(own.type.to_pandas_dtype()).kind in "fiub"
        ]
        if not numeric:
            raise ValueError("it has neither a column `features` nor numeric columns")
        table = self._file.read(columns=numeric)
        return np.stack([table.column(name).to_numpy() for name in numeric], 1)
