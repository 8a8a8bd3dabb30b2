"""Reading of inputs in batches; image files are decoded in advance by worker processes.

With `crops`, random crops of each image are read instead of the image, one for each view. An unreadable file is left
out of its batch and recorded in `ImageFiles.broken`.

Shapes: B images of a batch, V views of each, C channels, H by W pixels.
"""

import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from selfadapt.core import distributed
from selfadapt.core.device import copies_from_pinned, to_device
from selfadapt.core.launched import end_with_parent
from selfadapt.data.images.crops import RandomCrops
from selfadapt.data.images.decode import UnreadableImage
from selfadapt.data.images.storage import FileImages
from selfadapt.data.inputs import Inputs


@dataclass(frozen=True)
class Read:
    """The images of a batch that could be read, and the positions of those that could not, with the reason."""

    index_B: Tensor
    images_BCHW: Tensor  # B×V×C×H×W for crops
    broken: Sequence[tuple[int, str]] = ()


def read_batches(
    images: Inputs,
    batches: Iterable[Tensor],
    *,
    workers: int | None = None,
    device: torch.device | None = None,
    crops: RandomCrops | None = None,
) -> Iterator[Read]:
    """Yield the inputs of each batch on the device. By default, one worker process for each core of this
    process's share of the machine decodes files.
    """
    device = device or torch.device("cpu")
    if not isinstance(images, FileImages):
        for index_B in batches:
            yield Read(index_B, to_device(images.read(index_B), device))
        return
    count = min(distributed.usable_cores(), 16) if workers is None else workers
    pipeline: Iterable[Any] = DataLoader(
        _DecodingDataset(images, crops),
        batch_sampler=(index_B.tolist() for index_B in batches),
        collate_fn=_collate,
        num_workers=count,
        pin_memory=copies_from_pinned(device),
        prefetch_factor=4 if count else None,
        worker_init_fn=ignore_signals,
        # DataLoader draws a base seed for its workers. From the global generator, that draw would shift the random
        # numbers of dropout, and a resumed run would no longer be bit-identical.
        generator=torch.Generator(),
    )
    files = images.files
    for index_B, images_BCHW, broken in pipeline:
        files.broken.update((files.paths[position], reason) for position, reason in broken)
        yield Read(index_B, to_device(images_BCHW, device), broken)


def ignore_signals(worker: int) -> None:
    """Ignore signals to the process group in a worker: the main process needs it to save, and then stops it.

    Ctrl-C, torchrun and our own launcher signal a whole group. The worker ends with the main process (Linux only).
    """
    os.setpgid(0, 0)
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _DecodingDataset(Dataset[tuple[int, Tensor | str]]):
    """Image files for worker processes: the pixels, or the reason why a file is unreadable."""

    def __init__(self, images: FileImages, crops: RandomCrops | None) -> None:
        self.inputs, self.crops = images, crops

    def __getitem__(self, position: int) -> tuple[int, Tensor | str]:
        try:
            if self.crops is not None:
                return position, self.crops.cut(self.inputs.files, position)
            return position, self.inputs.decode(position)
        except UnreadableImage as error:
            return position, str(error)


def _collate(items: Sequence[tuple[int, Tensor | str]]) -> tuple[Tensor, Tensor, list[tuple[int, str]]]:
    decoded = [(position, pixels) for position, pixels in items if isinstance(pixels, Tensor)]
    broken = [(position, reason) for position, reason in items if isinstance(reason, str)]
    index_B = torch.tensor([position for position, _ in decoded], dtype=torch.int64)
    if not decoded:
        return index_B, torch.empty(0), broken
    # Decoders return channels last, so stacking in that layout is a plain copy, and the network prefers it anyway.
    stacked_BHWC = torch.stack([pixels.movedim(-3, -1) for _, pixels in decoded])
    return index_B, stacked_BHWC.movedim(-1, -3), broken
