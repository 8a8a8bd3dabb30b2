"""A cache of decoded images: files are decoded once into a memory-mapped file that later epochs and runs read.

    $SELFADAPT_HOME/decoded/KEY/pixels.bin    N×C×H×W, uint8
    $SELFADAPT_HOME/decoded/KEY/index.json    files that could not be decoded, and the checksum of each chunk of pixels

KEY is a hash of paths, sizes and modification times, so a changed file is decoded again. So are all files if a checksum
does not match; checksums are compared when a process first uses the pixels. Sets larger than `MOST_BYTES` are not
cached but decoded on demand.

Pixels are written to a folder .draft-KEY, flushed to disk, and renamed, under a lock: of several processes, whether of
one run or not, one decodes and the others wait for it. A draft whose lock is free was left by a process that died.
"""

import math
import shutil
import warnings
import zlib
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from selfadapt.core.atomic_files import atomic_folder
from selfadapt.core.cache_dir import cache_dir
from selfadapt.core.checksummed_json import from_line, to_line
from selfadapt.core.errors import UserError
from selfadapt.core.file_lock import exclusive
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.data.dataset import Data, Samples, readable
from selfadapt.data.images.metadata import files_key
from selfadapt.data.images.prefetch import read_batches
from selfadapt.data.images.storage import ImageFiles, TensorImages

MOST_BYTES = 4 << 30
_CHUNK_BYTES = 64 << 20  # of pixels with one checksum
_VERIFIED: set[tuple[Path, int, int]] = set()  # pixels that this process has verified, with inode and time of change


def cache_decoded(
    data: Data, *, stream: bool = False, stream_train: bool = False, on_progress: ProgressCallback = no_progress
) -> Data:
    """Return the data with each split that fits decoded and memory-mapped; unreadable files are removed and listed.

    With `stream`, all files are decoded on demand; with `stream_train`, those of the training split are.
    """
    unreadable = list(data.unreadable)

    def decode_split(samples: Samples) -> Samples:
        on_demand = stream or (stream_train and samples is data.train)
        if not isinstance(samples.inputs, ImageFiles) or on_demand or _num_bytes(samples.inputs) > MOST_BYTES:
            return samples
        images, broken = _decoded(samples.inputs, on_progress)
        if not broken:
            return replace(samples, inputs=images)
        unreadable.extend((samples.ids[position], reason) for position, reason in broken.items())
        return replace(samples, inputs=images).take(readable(data, samples, broken))

    splits = {name: decode_split(samples) for name, samples in data.splits.items()}
    return replace(data.with_splits(splits), unreadable=unreadable)


def _num_bytes(images: ImageFiles) -> int:
    return len(images) * math.prod(images.shape)


def _decoded(images: ImageFiles, on_progress: ProgressCallback) -> tuple[TensorImages, dict[int, str]]:
    scale = () if images.white is None else (images.white,)
    final = cache_dir() / "decoded" / files_key(images.paths, images.shape, images.resize, *scale)
    _remove_stale_drafts(final.parent)
    if final.exists() and (images_of := _intact(final, images, on_progress)):
        return images_of
    with exclusive(_lock_of(final)):
        if final.exists() and (images_of := _intact(final, images, on_progress)):
            return images_of  # another process has decoded them meanwhile
        _decode_into(final, images, on_progress)
        return _verified(final, images, on_progress)


def _intact(
    final: Path, images: ImageFiles, on_progress: ProgressCallback
) -> tuple[TensorImages, dict[int, str]] | None:
    """Map the pixels and return them, or None with a warning if they are damaged."""
    try:
        return _verified(final, images, on_progress)
    except (OSError, ValueError) as error:
        if final.exists():
            warnings.warn(f"{final} is damaged: {error}; the images are decoded again", stacklevel=2)
        return None


def _verified(final: Path, images: ImageFiles, on_progress: ProgressCallback) -> tuple[TensorImages, dict[int, str]]:
    """Map the pixels. Raises an OSError or a ValueError if they or the index were changed."""
    index = from_line((final / "index.json").read_bytes())
    status = (final / "pixels.bin").stat()
    if status.st_size != _num_bytes(images):
        raise ValueError(f"pixels.bin has {status.st_size:,} of {_num_bytes(images):,} bytes")
    pixels = _mapped(final / "pixels.bin", images)
    version = (final, status.st_ino, status.st_mtime_ns)
    if version not in _VERIFIED and _checksums(pixels, on_progress) != index["chunks"]:
        raise ValueError("pixels.bin does not match its checksums")
    _VERIFIED.add(version)
    return TensorImages(pixels.view(len(images), *images.shape)), dict(index["broken"])


def _mapped(path: Path, images: ImageFiles) -> Tensor:
    return torch.from_file(str(path), shared=False, size=_num_bytes(images), dtype=torch.uint8)


def _checksums(pixels: Tensor, on_progress: ProgressCallback = no_progress) -> list[int]:
    found, chunks = [], pixels.split(_CHUNK_BYTES)
    for number, chunk in enumerate(chunks):
        if number:
            on_progress(number, len(chunks))
        found.append(zlib.crc32(chunk.numpy()))
    return found


def _lock_of(final: Path) -> Path:
    return final.with_name(f".lock-{final.name}")


def _remove_stale_drafts(folder: Path) -> None:
    """Remove the drafts of processes that died."""
    for draft in folder.glob(".draft-*"):
        with exclusive(_lock_of(folder / draft.name.removeprefix(".draft-")), wait=False) as is_stale:
            if is_stale:
                shutil.rmtree(draft, ignore_errors=True)


def _decode_into(final: Path, images: ImageFiles, on_progress: ProgressCallback) -> None:
    try:
        with atomic_folder(final, flush=True) as draft:
            with open(draft / "pixels.bin", "wb") as file:
                index = _write_pixels(file, images, on_progress)
            (draft / "index.json").write_text(to_line(index))
    except OSError as error:
        raise UserError(
            f"the decoded images cannot be cached in {final.parent}: {error.strerror or error}; "
            "free some space, set SELFADAPT_HOME to another folder, or decode on demand with --stream"
        ) from error


def _write_pixels(file: IO[bytes], images: ImageFiles, on_progress: ProgressCallback) -> dict[str, Any]:
    """Write each image at its offset; return the index."""
    broken: list[tuple[int, str]] = []
    done, size = 0, math.prod(images.shape)
    file.truncate(_num_bytes(images))
    for read in read_batches(images, torch.arange(len(images)).split(64)):
        for position, pixels in zip(read.index_B.tolist(), read.images_BCHW, strict=False):
            file.seek(position * size)
            file.write(pixels.numpy().tobytes())
        broken += read.broken
        done += len(read.index_B) + len(read.broken)
        on_progress(done, len(images))
    file.flush()
    return {"broken": broken, "chunks": _checksums(_mapped(Path(file.name), images))}
