"""Frozen features of images, computed once by a pretrained network and cached.

The cache key is the content of the image, the network, its weights and its preprocessing. A copied or renamed folder
therefore needs no work, and ten more photos need the work of ten. Features are written as they are computed, so an
interruption loses at most a batch or two.

Several processes, on any number of machines, share the images and exchange the rows. On a CPU each core decodes and
computes separately, in small batches that fit its cache: two processes with one thread each are faster than two threads
on one batch. On other devices, workers decode and the device computes.

Shapes: N images, B of a batch, C channels, H by W pixels, F features.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader, Dataset

from selfadapt.core import distributed
from selfadapt.core.errors import Interrupted, UserError
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.data.images.decode import Frame
from selfadapt.data.images.packed_files import image_bytes
from selfadapt.data.images.prefetch import ignore_signals, read_batches
from selfadapt.data.images.storage import ImageFiles, Shape
from selfadapt.data.images.transforms import as_floats
from selfadapt.data.inputs import InputKind, Inputs
from selfadapt.data.row_cache import RowCache, content_digest
from selfadapt.models.backbone import Backbone
from selfadapt.models.pretrained.folding import folded
from selfadapt.models.pretrained.timm_models import Pretrained

_CPU_BATCH = 4  # fits the widest maps of lite0 at 224 pixels into the cache of a core
_DEVICE_BATCH = 64
_MIN_FOR_WORKERS = 32  # images below which starting processes costs more than it saves
_ROUND = 16  # batches after which processes that share the images wait for each other
_BLOCK = 65_536  # rows that are exchanged at a time


@dataclass(frozen=True, kw_only=True)
class Features:
    """One row per image; NaN for an unreadable one."""

    values_NF: Tensor
    broken: Sequence[tuple[int, str]]  # position, reason
    taken: int  # images that were not in the cache


@dataclass(frozen=True)
class FramedImages:
    """Images in memory, resized for a network as they are read."""

    kind: ClassVar[InputKind] = "images"
    inputs: Inputs
    frame: Frame

    @property
    def shape(self) -> Shape:
        return self.inputs.shape[0], self.frame.size, self.frame.size

    def __len__(self) -> int:
        return len(self.inputs)

    def read(self, index_B: Tensor) -> Tensor:
        frame, values_BCHW = self.frame, self.inputs.read(index_B).float()
        height, width = self.inputs.shape[1:]
        short = min(height, width)
        size = [frame.side if frame.squash else int(frame.side * side / short) for side in (height, width)]
        if size != [height, width]:
            mode = "bilinear" if frame.interpolation == "bilinear" else "bicubic"
            values_BCHW = interpolate(values_BCHW, size, mode=mode, antialias=True, align_corners=False)
        top, left = (round((side - frame.size) / 2) for side in size)
        middle = values_BCHW[..., top : top + frame.size, left : left + frame.size]
        return middle.round().clamp(0, 255).to(torch.uint8)

    def take(self, index_n: Tensor) -> "FramedImages":
        return FramedImages(self.inputs.take(index_n), self.frame)

    def signature(self) -> bytes:
        return content_digest(self.inputs.signature(), repr(self.frame).encode())


def framed(images: Inputs, network: Pretrained) -> Inputs:
    """Preprocess images for the network. Files are converted to its channels; arrays must already have them."""
    if isinstance(images, ImageFiles):
        return replace(images, shape=network.shape, resize=network.frame)
    channels = images.shape[0]
    if channels != network.channels:
        raise UserError(
            f"the images have {channels} colour channel{'s' if channels != 1 else ''}, but {network.name} takes "
            f"{network.channels}; convert them (np.repeat(x[..., None], 3, -1) converts grey to RGB), or train from "
            "scratch with --weights none"
        )
    return FramedImages(images, network.frame)


def features_of(
    images: Inputs,
    network: Pretrained,
    *,
    device: torch.device | None = None,
    workers: int | None = None,
    keep: bool = True,
    on_progress: ProgressCallback = no_progress,
) -> Features:
    """Compute the features of all images, with the network in evaluation mode and batch normalisation folded.

    A collective call: each process computes a share, and all get the whole result.

    Args:
        images: Images of any size.
        network: The pretrained network.
        device: Where to compute; the CPU by default.
        workers: Number of worker processes, one for each core by default; 0 computes in this process.
        keep: Whether to use the cache.
        on_progress: Called with the number of finished images, including cached ones, and the total.

    Raises:
        UserError: If the images do not have the channels of the network.
        Interrupted: On Ctrl-C. Features computed so far are cached.
    """
    device = device or torch.device("cpu")
    ready = framed(images, network)
    digests = _digests(images)
    cache = RowCache(network.about(), network.backbone.num_features) if keep else None
    found = cache.find(digests) if cache else {}
    rank, world_size = distributed.rank(), distributed.world_size()
    # The row of an image comes from the first process whose cache has it, as each machine may have its own cache.
    lowest_N = torch.tensor([world_size - rank if digest in found else 0 for digest in digests], dtype=torch.int64)
    owner_N = world_size - distributed.all_reduce_max(lowest_N)
    values_NF = torch.zeros(len(digests), network.backbone.num_features)
    for position in (owner_N == rank).nonzero().flatten().tolist():
        values_NF[position] = torch.from_numpy(found[digests[position]])
    cached = (owner_N < world_size).tolist()
    first = {digest: position for position, digest in reversed(list(enumerate(digests))) if not cached[position]}
    wanted = torch.tensor(sorted(first.values()), dtype=torch.int64)
    reasons: dict[bytes, str] = {}
    done = sum(cached)
    on_progress(done, len(digests))
    try:
        for index_B, rows_BF, broken in _compute_shared(ready, wanted, network, device, workers):
            values_NF[index_B] = rows_BF
            if cache and len(index_B):
                cache.add([digests[position] for position in index_B.tolist()], rows_BF.numpy())
            reasons |= {digests[position]: reason for position, reason in broken}
            done += (len(index_B) + len(broken)) * world_size
            on_progress(min(done, len(digests)), len(digests))
    except Interrupted as interruption:
        if cache is None or cache.refused:
            raise
        raise Interrupted(
            f"{interruption}; features computed so far are cached, and the same command resumes"
        ) from None
    if cache:
        cache.trim()
    for others in distributed.all_gather_objects(reasons):
        reasons |= others
    for block_BF in values_NF.split(_BLOCK):
        distributed.all_reduce_sum(block_BF)  # each row is zero in all processes but one
    for position, digest in enumerate(digests):
        if digest in reasons:
            values_NF[position] = torch.nan
        elif first.get(digest, position) != position:  # duplicates are computed once
            values_NF[position] = values_NF[first[digest]]
    on_progress(len(digests), len(digests))
    return Features(
        values_NF=values_NF,
        broken=[(position, reasons[digest]) for position, digest in enumerate(digests) if digest in reasons],
        taken=len(wanted) - len(reasons),
    )


def _digests(images: Inputs) -> list[bytes]:
    """The content hash of each image. Each process reads a share of them."""
    rank, world_size = distributed.rank(), distributed.world_size()
    own = _own_digests(images.take(torch.arange(rank, len(images), world_size)) if world_size > 1 else images)
    digests = [b""] * len(images)
    for other, found in enumerate(distributed.all_gather_objects(own)):
        digests[other::world_size] = found
    return digests


def _own_digests(images: Inputs) -> list[bytes]:
    if isinstance(images, ImageFiles):
        with ThreadPoolExecutor() as pool:
            return list(pool.map(lambda path: _file_digest(path, images.white), images.paths))
    shape = repr(images.shape).encode()
    return [
        content_digest(shape, pixels.numpy().tobytes())
        for index_B in torch.arange(len(images)).split(1024)
        for pixels in images.read(index_B).cpu()
    ]


def _file_digest(path: Path, white: float | None) -> bytes:
    """Hash the content of the file and, for images of more than 8 bits, the white level."""
    try:
        return content_digest(image_bytes(path), *([] if white is None else [repr(white).encode()]))
    except (OSError, UserError):
        return content_digest(b"unreadable", os.fsencode(path))  # decoding reports the reason


_Chunk = tuple[Tensor, Tensor, Sequence[tuple[int, str]]]


def _compute_shared(
    images: Inputs, wanted: Tensor, network: Pretrained, device: torch.device, workers: int | None
) -> Iterator[_Chunk]:
    """Yield the share of this process, batch by batch. The shares differ by one image at most."""
    rank, world_size = distributed.rank(), distributed.world_size()
    batch = _CPU_BATCH if device.type == "cpu" else _DEVICE_BATCH
    most = -(-len(wanted[::world_size]) // batch)
    return distributed.in_step(_compute(images, wanted[rank::world_size], network, device, workers), most, every=_ROUND)


def _compute(
    images: Inputs, wanted: Tensor, network: Pretrained, device: torch.device, workers: int | None
) -> Iterator[_Chunk]:
    """Yield positions, rows and broken images, batch by batch."""
    if not len(wanted):
        return
    model = folded(network.backbone, network.shape).to(device)
    if device.type != "cpu":
        for read in read_batches(images, wanted.split(_DEVICE_BATCH), workers=workers, device=device):
            yield read.index_B, _rows(model, read.images_BCHW, _DEVICE_BATCH), read.broken
        return
    if workers is None:
        cores = distributed.usable_cores()
        workers = cores if len(wanted) >= _MIN_FOR_WORKERS and cores > 1 else 0
    batches = wanted.split(_CPU_BATCH)
    pipeline: Any = DataLoader(
        _Extraction(images, model, batches),
        batch_size=None,
        num_workers=workers,
        worker_init_fn=ignore_signals,
    )
    yield from pipeline


class _Extraction(Dataset[_Chunk]):
    """Item k: the features of batch k, computed in the worker that requests it."""

    def __init__(self, images: Inputs, model: Backbone, batches: Sequence[Tensor]) -> None:
        self.inputs, self.model, self.batches = images, model, batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, k: int) -> _Chunk:
        read = next(iter(read_batches(self.inputs, [self.batches[k]], workers=0)))
        return read.index_B, _rows(self.model, read.images_BCHW, _CPU_BATCH), read.broken


@torch.inference_mode()
def _rows(model: Backbone, images_BCHW: Tensor, batch: int) -> Tensor:
    """Compute the features of up to `batch` images.

    Batches are padded to full size, because the last bits of a result depend on the batch size and a row must not
    depend on which others were cached.
    """
    count = len(images_BCHW)
    if not count:
        return torch.empty(0, model.num_features)
    padding = images_BCHW[-1:].expand(batch - count, -1, -1, -1)
    rows_BF: Tensor = model(as_floats(torch.cat([images_BCHW, padding])))
    return rows_BF[:count].float().cpu().clone()
