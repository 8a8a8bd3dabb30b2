"""A cache of decoded images: files are decoded once into a memory-mapped file that later epochs and runs read.

    $SELFADAPT_HOME/decoded/KEY/pixels.bin    N×C×H×W, uint8
    $SELFADAPT_HOME/decoded/KEY/broken.json   [[position, reason], …], files that could not be decoded

KEY is a hash of paths, sizes and modification times, so a changed file is decoded again. Sets larger than `MOST_BYTES`
are not cached but decoded on demand.

Pixels are written to a folder .draft-KEY, flushed to disk, and renamed, under a lock: of several processes, whether of
one run or not, one decodes and the others wait for it. A draft whose lock is free was left by a process that died.
"""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import IO

import torch

from selfadapt.core.atomic_files import fsync_path
from selfadapt.core.cache_dir import cache_dir
from selfadapt.core.errors import UserError
from selfadapt.core.file_lock import exclusive
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.data.dataset import Data, Samples, readable
from selfadapt.data.images.metadata import files_key
from selfadapt.data.images.prefetch import read_batches
from selfadapt.data.images.storage import ImageFiles, TensorImages

MOST_BYTES = 4 << 30


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
    if not final.exists():
        with exclusive(_lock_of(final)):
            if not final.exists():
                _decode_into(final, images, on_progress)
    broken = dict(json.loads((final / "broken.json").read_text()))
    flat = torch.from_file(str(final / "pixels.bin"), shared=False, size=_num_bytes(images), dtype=torch.uint8)
    return TensorImages(flat.view(len(images), *images.shape)), broken


def _lock_of(final: Path) -> Path:
    return final.with_name(f".lock-{final.name}")


def _draft_of(final: Path) -> Path:
    return final.with_name(f".draft-{final.name}")


def _remove_stale_drafts(folder: Path) -> None:
    """Remove the drafts of processes that died."""
    for draft in folder.glob(".draft-*"):
        with exclusive(_lock_of(folder / draft.name.removeprefix(".draft-")), wait=False) as is_stale:
            if is_stale:
                shutil.rmtree(draft, ignore_errors=True)


def _decode_into(final: Path, images: ImageFiles, on_progress: ProgressCallback) -> None:
    draft = _draft_of(final)
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir(parents=True)
        with open(draft / "pixels.bin", "wb") as file:
            broken = _write_pixels(file, images, on_progress)
        (draft / "broken.json").write_text(json.dumps(broken))
        for path in (draft / "pixels.bin", draft / "broken.json", draft):
            fsync_path(path)
        draft.rename(final)
        fsync_path(final.parent)
    except OSError as error:
        raise UserError(
            f"the decoded images cannot be cached in {final.parent}: {error.strerror or error}; "
            "free some space, set SELFADAPT_HOME to another folder, or decode on demand with --stream"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write_pixels(file: IO[bytes], images: ImageFiles, on_progress: ProgressCallback) -> list[tuple[int, str]]:
    """Write each image at its offset; return the positions of unreadable files, with the reason."""
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
    return broken
