"""Worker processes that decode files."""

import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from selfadapt.data.images.prefetch import read_batches
from selfadapt.data.images.storage import ImageFiles


def test_a_signal_to_the_group_does_not_reach_a_worker(tmp_path: Path) -> None:
    """So the main process can finish its step and save."""
    paths = [tmp_path / f"{number}.png" for number in range(6)]
    for number, path in enumerate(paths):
        Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(path)
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        reads = read_batches(ImageFiles(paths, (3, 4, 4)), torch.arange(6).split(1), workers=1)
        values = [next(reads).images_BCHW.unique().item()]
        (worker,) = multiprocessing.active_children()
        assert worker.pid is not None
        assert os.getpgid(worker.pid) == worker.pid != os.getpgrp()
        os.kill(os.getpid(), signal.SIGTERM)  # what a signal to its group does to this process
        values += [read.images_BCHW.unique().item() for read in reads]
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [signal.SIGTERM]
    assert values == list(range(6))
