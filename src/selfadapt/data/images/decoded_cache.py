"""Image files decoded once into a mapped file, so that later epochs and runs read pixels at the speed of memory.

    $SELFADAPT_HOME/decoded/KEY/pixels.bin    N×C×H×W, uint8
    $SELFADAPT_HOME/decoded/KEY/broken.json   [[position, reason], …], files that could not be decoded

KEY is a hash of paths, sizes and times of change, so a changed file is decoded anew. What would take more than
`MOST_BYTES` is not kept but decoded on demand.

Pixels are written in a folder .draft-KEY-PROCESS, flushed to the disk and then renamed. Who writes them holds a lock on
them; a draft that nobody holds was left by a process that is gone, and is taken away.
"""

import fcntl
import json
import os
import shutil
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import torch

from selfadapt.core.cache_dir import cache_dir
from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.data.dataset import Data, Samples, readable
from selfadapt.data.images.metadata import files_key
from selfadapt.data.images.prefetch import read_batches
from selfadapt.data.images.storage import ImageFiles, TensorImages

MOST_BYTES = 4 << 30
_YOUNG = 60.0  # seconds in which a draft may still be without its lock


def keep_decoded(
    data: Data, *, stream: bool = False, stream_train: bool = False, on_progress: ProgressCallback = no_progress
) -> Data:
    """The data with every part that fits decoded and mapped; broken files are taken out and listed.

    With `stream`, files are left to be decoded on demand; with `stream_train`, those of the training part.
    """
    unreadable = list(data.unreadable)

    def kept(samples: Samples) -> Samples:
        on_demand = stream or (stream_train and samples is data.train)
        if not isinstance(samples.inputs, ImageFiles) or on_demand or _bytes(samples.inputs) > MOST_BYTES:
            return samples
        images, broken = _decoded(samples.inputs, on_progress)
        if not broken:
            return replace(samples, inputs=images)
        unreadable.extend((samples.ids[position], reason) for position, reason in broken.items())
        return replace(samples, inputs=images).take(readable(data, samples, broken))

    parts = {name: kept(samples) for name, samples in data.splits.items()}
    return replace(data.with_splits(parts), unreadable=unreadable)


def _bytes(images: ImageFiles) -> int:
    channels, height, width = images.shape
    return len(images) * channels * height * width


def _decoded(images: ImageFiles, on_progress: ProgressCallback) -> tuple[TensorImages, dict[int, str]]:
    scale = () if images.white is None else (images.white,)
    final = cache_dir() / "decoded" / files_key(images.paths, images.shape, images.resize, *scale)
    _clean(final.parent)
    if not final.exists():
        _decode_into(final, images, on_progress)
    broken = dict(json.loads((final / "broken.json").read_text()))
    flat = torch.from_file(str(final / "pixels.bin"), shared=False, size=_bytes(images), dtype=torch.uint8)
    return TensorImages(flat.view(len(images), *images.shape)), broken


def _clean(folder: Path) -> None:
    """Take away the drafts of processes that are gone."""
    for draft in folder.glob(".draft-*"):
        try:
            if time.time() - draft.stat().st_mtime < _YOUNG:
                continue
            if (draft / "pixels.bin").exists():
                with open(draft / "pixels.bin", "rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # somebody is writing it, or has just finished
            continue
        shutil.rmtree(draft, ignore_errors=True)


def _decode_into(final: Path, images: ImageFiles, on_progress: ProgressCallback) -> None:
    draft = final.with_name(f".draft-{final.name}-{os.getpid()}")
    try:
        draft.mkdir(parents=True)
        with open(draft / "pixels.bin", "wb") as file:
            with suppress(OSError):  # where there are no locks, drafts stay
                fcntl.flock(file, fcntl.LOCK_EX)
            broken = _write_pixels(file, images, on_progress)
            _flush(file)
            with open(draft / "broken.json", "w") as listed:
                json.dump(broken, listed)
                _flush(listed)
            _flush_folder(draft)
            draft.rename(final)
        _flush_folder(final.parent)
    except OSError as error:
        if not final.exists():  # else another process was quicker, and its result is as good
            raise UserError(
                f"the decoded images cannot be kept in {final.parent}: {error.strerror or error}; "
                "free some space, set SELFADAPT_HOME to another folder, or decode on demand with --stream"
            ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write_pixels(file: IO[bytes], images: ImageFiles, on_progress: ProgressCallback) -> list[tuple[int, str]]:
    """Write each image in its place, and return which are broken, and why."""
    broken: list[tuple[int, str]] = []
    done, size = 0, _bytes(images) // len(images)
    file.truncate(_bytes(images))
    for read in read_batches(images, torch.arange(len(images)).split(64)):
        for position, pixels in zip(read.index_B.tolist(), read.images_BCHW, strict=False):
            file.seek(position * size)
            file.write(pixels.numpy().tobytes())
        broken += read.broken
        done += len(read.index_B) + len(read.broken)
        on_progress(done, len(images))
    return broken


def _flush(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
