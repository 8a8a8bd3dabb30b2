"""Features of any size, read in blocks: an array, a memory-mapped file, a folder of shards, or an iterable of arrays.

Blocks follow a grid over all samples, whatever the files: a sum over blocks is the same for one shard and for many. No
block is larger than its caller asks for, and what is mapped is released after reading, so the memory of a pass does not
grow with the number of samples.

Shapes: N samples, n of a block, F features.
"""

import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfadapt.core.array_files import Array
from selfadapt.core.errors import UserError
from selfadapt.data.shards.manifest import MANIFEST, Manifest, ShardEntry, read_manifest, write_shard
from selfadapt.data.shards.shard_file import SUFFIXES, Column, Shard, release, shard_of_array, shard_of_file


@dataclass(eq=False)
class FeatureShards:
    """The features of N samples, in the order of the shards."""

    shards: Sequence[Shard]
    _owner: Any = None  # of temporary files
    _opened: tuple[int, Array] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not self.shards:
            raise UserError("features must have at least one shard")
        # an empty .parquet does not know its width, nor an empty column its type
        self.shards = [shard for shard in self.shards if shard.samples] or self.shards[:1]
        first = self.shards[0]
        other = next((own for own in self.shards if own.dimensions != first.dimensions), None)
        if other is not None:
            raise UserError(
                f"{other.name} has {other.dimensions} features and {first.name} {first.dimensions}; they must be equal"
            )

    @classmethod
    def of(cls, features: Any) -> "FeatureShards":
        """Open what a user passes: a path, an array, a tensor, or an iterable of arrays.

        A folder with a manifest is read in its order, any other in the order of the names. An iterable is read once, to
        temporary shards.

        Raises:
            UserError: If a file is missing, cannot be read, or does not match the others.
        """
        if isinstance(features, str | Path):
            return cls(_shards_at(Path(features)))
        if isinstance(features, cls):
            return features
        if isinstance(features, Tensor):
            features = features.detach().cpu()
            return cls([shard_of_array((features.float() if features.dtype == torch.bfloat16 else features).numpy())])
        if isinstance(features, Iterable) and not hasattr(features, "__array__") and not isinstance(features, Sequence):
            return _spooled(cls, features)
        return cls([shard_of_array(np.asarray(features))])

    @property
    def dimensions(self) -> int:
        return self.shards[0].dimensions

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(shard.samples for shard in self.shards))

    def __len__(self) -> int:
        return self._ends[-1]

    def blocks(self, rows: int, start: int = 0, stop: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Yield the samples from `start` to `stop`, at most `rows` at a time, as float32."""
        stop = len(self) if stop is None else stop
        for first in range(start, stop, rows):
            block = slice(first, min(first + rows, stop))
            yield block, self.read(block)

    def read(self, block: slice) -> Tensor:
        """The samples of a range, as a new float32 tensor."""
        values_nF, done = np.empty((block.stop - block.start, self.dimensions), np.float32), 0
        while done < len(values_nF):
            number, place = self._place(block.start + done)
            array = self._array(number)
            part = array[place : place + len(values_nF) - done]
            with np.errstate(over="ignore"):  # numbers beyond float32 become infinite
                values_nF[done : done + len(part)] = part
            done += len(part)
            release(array)
        return torch.from_numpy(values_nF)

    def take(self, index_n: Tensor) -> Tensor:
        """The samples at these positions, as float32."""
        values_nF = np.empty((len(index_n), self.dimensions), np.float32)
        order = index_n.argsort(stable=True).numpy()
        sorted_n = index_n.numpy()[order]
        ends = np.searchsorted(sorted_n, self._ends)
        for number, (first, last) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            if first < last:
                array = self._array(number)
                values_nF[order[first:last]] = array[sorted_n[first:last] - self._ends[number] + len(array)]
                release(array)
        return torch.from_numpy(values_nF)

    def not_finite(self, count: int, first: int) -> str:
        """A message that this number of rows is not finite, which names the first one in its shard."""
        number, place = self._place(first)
        row = f"row {first}" if len(self.shards) == 1 else f"row {place} of {self.shards[number].name}"
        return (
            f"features are not finite float32 numbers in {count} rows, first in {row}; correct them or leave the "
            "samples out"
        )

    def column(self, name: Column) -> Array | None:
        """The ids or labels of all samples, or None if no shard holds them.

        Raises:
            UserError: If only some of the shards hold them.
        """
        found = [shard.column(name) for shard in self.shards]
        lacking = [shard.name for shard, own in zip(self.shards, found, strict=True) if own is None]
        if len(lacking) == len(found):
            return None
        if lacking:
            raise UserError(f"{lacking[0]} holds no {name}, but other shards do; write them to all of the shards")
        for shard, own in zip(self.shards, found, strict=True):
            if own is not None and own.shape != (shard.samples,):
                raise UserError(f"{shard.name} has {shard.samples} samples but {name} of shape {own.shape}")
        return np.concatenate([own for own in found if own is not None])

    def _place(self, position: int) -> tuple[int, int]:
        number = bisect_right(self._ends, position)
        return number, position - self._ends[number] + self.shards[number].samples

    def _array(self, number: int) -> Array:
        """The features of a shard. The last one stays open, because a file that is not mapped is read as a whole."""
        if self._opened is None or self._opened[0] != number:
            self._opened = None
            self._opened = number, self.shards[number].features()
        return self._opened[1]


def _shards_at(path: Path) -> list[Shard]:
    path = path.parent if path.name == MANIFEST else path
    if not path.exists():
        raise UserError(f"{path} does not exist; give a folder of feature shards or a file ({', '.join(SUFFIXES)})")
    if not path.is_dir():
        if path.suffix not in SUFFIXES:
            raise UserError(f"{path} is not a file of features; give {', '.join(SUFFIXES)} or a folder of them")
        return [shard_of_file(path)]
    manifest = read_manifest(path)
    if manifest is None:
        names = sorted(own for own in path.iterdir() if own.suffix in SUFFIXES and not own.name.startswith("."))
        if not names:
            raise UserError(f"{path} has none of the files of feature shards ({', '.join(SUFFIXES)})")
        return [shard_of_file(own) for own in names]
    if manifest.source.get("unfinished"):
        raise UserError(f"{path} is incomplete: the command that writes it was interrupted; run it again to resume it")
    return [_listed(path, manifest, entry) for entry in manifest.shards]


def _listed(folder: Path, manifest: Manifest, entry: ShardEntry) -> Shard:
    shard = shard_of_file(folder / entry.file)
    if (shard.samples, shard.dimensions) != (entry.samples, manifest.dimensions):
        raise UserError(
            f"{shard.name} holds {shard.samples} samples of {shard.dimensions} features, but {folder / MANIFEST} lists "
            f"{entry.samples} of {manifest.dimensions}; write the features again"
        )
    return shard


def _spooled(kind: type[FeatureShards], arrays: Iterable[Any]) -> FeatureShards:
    """The arrays of an iterable in temporary files, which are removed with the last reference to the result."""
    folder = tempfile.TemporaryDirectory(prefix="selfadapt-features-")
    for number, own in enumerate(arrays):
        array = np.asarray(own.detach().cpu() if isinstance(own, Tensor) else own)
        shard_of_array(array, f"array {number} of the features")  # checks it
        write_shard(Path(folder.name), number, array if array.dtype == np.float16 else array.astype(np.float32))
    return kind(_shards_at(Path(folder.name)), folder)
