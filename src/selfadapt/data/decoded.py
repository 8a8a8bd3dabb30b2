"""Image files decoded once into a mapped file, so that later epochs and runs read pixels at the speed of memory.

    $SELFADAPT_HOME/decoded/KEY/pixels.bin    N×C×H×W, uint8
    $SELFADAPT_HOME/decoded/KEY/broken.json   [[position, reason], …], files that could not be decoded

KEY is a hash of paths, sizes and times of change, so a changed file is decoded anew. What would take more than
`MOST_BYTES` is not kept but decoded on demand.
"""

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import torch

from selfadapt.data.fetch import Watch, unwatched
from selfadapt.data.home import home
from selfadapt.data.images import ImageFiles, TensorImages
from selfadapt.data.loader import read_batches
from selfadapt.data.samples import Data, Samples
from selfadapt.errors import UserError

MOST_BYTES = 4 << 30


def keep_decoded(data: Data, *, stream: bool = False, watch: Watch = unwatched) -> Data:
    """The data with every part that fits decoded and mapped; broken files are taken out and listed.

    With `stream`, files are left to be decoded on demand.
    """
    unreadable = list(data.unreadable)

    def kept(samples: Samples | None) -> Samples | None:
        if (
            samples is None
            or not isinstance(samples.images, ImageFiles)
            or stream
            or _bytes(samples.images) > MOST_BYTES
        ):
            return samples
        images, broken = _decoded(samples.images, watch)
        if not broken:
            return replace(samples, images=images)
        unreadable.extend((samples.ids[position], reason) for position, reason in broken.items())
        fine = torch.tensor([i for i in range(len(samples)) if i not in broken], dtype=torch.int64)
        if not len(fine):
            raise UserError(
                f"{data.name}: no image of a whole part can be read, such as {unreadable[-1][0]}: {unreadable[-1][1]}"
            )
        return replace(samples, images=images).take(fine)

    train = kept(data.train)
    assert train is not None
    validation, test = kept(data.validation), kept(data.test)
    return replace(data, train=train, validation=validation, test=test, unreadable=unreadable)


def _bytes(images: ImageFiles) -> int:
    channels, height, width = images.shape
    return len(images) * channels * height * width


def _key(images: ImageFiles) -> str:
    digest = hashlib.sha256(repr((images.shape, images.resize)).encode())
    for path in images.paths:
        status = path.stat()
        digest.update(f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:32]


def _decoded(images: ImageFiles, watch: Watch) -> tuple[TensorImages, dict[int, str]]:
    final = home() / "decoded" / _key(images)
    if not final.exists():
        _decode_into(final, images, watch)
    broken = dict(json.loads((final / "broken.json").read_text()))
    flat = torch.from_file(str(final / "pixels.bin"), shared=False, size=_bytes(images), dtype=torch.uint8)
    return TensorImages(flat.view(len(images), *images.shape)), broken


def _decode_into(final: Path, images: ImageFiles, watch: Watch) -> None:
    draft = final.with_name(f".draft-{final.name}-{os.getpid()}")
    try:
        draft.mkdir(parents=True)
        broken: list[tuple[int, str]] = []
        done = 0
        with open(draft / "pixels.bin", "wb") as file:
            file.truncate(_bytes(images))
            size = _bytes(images) // len(images)
            for read in read_batches(images, torch.arange(len(images)).split(64)):
                for position, pixels in zip(read.index_B.tolist(), read.images_BCHW, strict=False):
                    file.seek(position * size)
                    file.write(pixels.numpy().tobytes())
                broken += read.broken
                done += len(read.index_B) + len(read.broken)
                watch(done, len(images))
        (draft / "broken.json").write_text(json.dumps(broken))
        draft.rename(final)
    except OSError as error:
        if not final.exists():  # else another process was quicker, and its result is as good
            raise UserError(
                f"the decoded images cannot be kept in {final.parent}: {error.strerror or error}; "
                "free some space, set SELFADAPT_HOME to another folder, or decode on demand with --stream"
            ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
