"""Reading images batch by batch; files are decoded ahead of time, by worker processes.

With `crops`, random crops of each picture are read instead of the picture, as many as there are views.

A file that turns out broken is left out of its batch and noted with the files, whoever reads them.

Shapes: B images of a batch, V views of each, C channels, H by W pixels.
"""

import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from selfadapt.core import distributed
from selfadapt.data.images.crops import RandomCrops
from selfadapt.data.images.storage import FileImages, UnreadableImage
from selfadapt.data.inputs import Inputs


@dataclass(frozen=True)
class Read:
    """The images of a batch that could be read, and those that could not."""

    index_B: Tensor
    images_BCHW: Tensor  # of crops B×V×C×H×W
    broken: Sequence[tuple[int, str]] = ()


def read_batches(
    images: Inputs,
    batches: Sequence[Tensor],
    *,
    workers: int | None = None,
    device: torch.device | None = None,
    crops: RandomCrops | None = None,
) -> Iterator[Read]:
    """The images of each batch in turn, on the device; files are decoded by worker processes."""
    device = device or torch.device("cpu")
    if not isinstance(images, FileImages):
        for index_B in batches:
            yield Read(index_B, images.read(index_B).to(device))
        return
    count = min(max(1, distributed.usable_cores() // distributed.world_size()), 16) if workers is None else workers
    pipeline: Iterable[Any] = DataLoader(
        _Decoding(images, crops),
        batch_sampler=[index_B.tolist() for index_B in batches],
        collate_fn=_collate,
        num_workers=count,
        pin_memory=device.type == "cuda",
        prefetch_factor=4 if count else None,
        worker_init_fn=leave_signals_to_the_program,
        # It draws a seed for its workers, who have no use for it. From the global generator it would shift what
        # dropout draws, and a resumed run would not be the same to the bit.
        generator=torch.Generator(),
    )
    files = images.files
    for index_B, images_BCHW, broken in pipeline:
        files.broken.update((files.paths[position], reason) for position, reason in broken)
        yield Read(index_B, images_BCHW.to(device, non_blocking=True), broken)


def leave_signals_to_the_program(worker: int) -> None:
    """For a worker: Ctrl-C reaches every process of a terminal, but only the program answers; it ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _Decoding(Dataset[tuple[int, Tensor | str]]):
    """Image files for worker processes: the pixels, or the reason why there are none."""

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
    fine = [(position, pixels) for position, pixels in items if isinstance(pixels, Tensor)]
    broken = [(position, reason) for position, reason in items if isinstance(reason, str)]
    index_B = torch.tensor([position for position, _ in fine], dtype=torch.int64)
    if not fine:
        return index_B, torch.empty(0), broken
    # Decoders give channels last, so stacking them that way is a plain copy; the model wants that layout anyway.
    stacked_BHWC = torch.stack([pixels.movedim(-3, -1) for _, pixels in fine])
    return index_B, stacked_BHWC.movedim(-1, -3), broken
