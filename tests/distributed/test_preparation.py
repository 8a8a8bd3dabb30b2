"""Who prepares the data of several processes: the first of each machine, or one for all where they share a cache."""

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from distributed.group import in_processes
from selfadapt.core import distributed
from selfadapt.data.images import decoded_cache
from selfadapt.runs.config.request import Request
from selfadapt.runs.lifecycle.lifecycle import open_and_plan

pytestmark = pytest.mark.distributed


def _prepare(folder: Path, machines: int, locks: bool) -> None:
    """Two machines of two processes, each with its own cache; or two that share one."""
    rank, write, decoded = distributed.rank(), decoded_cache._write_pixels, list[int]()
    home = folder / f"home-{rank // 2 if machines == 2 else 'shared'}-{locks}"
    os.environ.update(SELFADAPT_HOME=str(home), LOCAL_RANK=str(rank % 2), LOCAL_WORLD_SIZE="2")

    def counted(*given: Any) -> Any:
        decoded.append(1)
        return write(*given)

    def refused(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoded_cache, "_write_pixels", counted)
        if not locks:
            patch.setattr(fcntl, "flock", refused)
        _, data = open_and_plan(Request.of(data=str(folder / "zoo"), model="mlp"))
    assert len(data.train) > 0
    prepared = [bool(own) for own in distributed.all_gather_objects(decoded)]
    if machines == 2:
        assert prepared == [True, False, True, False]
    else:
        assert sum(prepared) == 1
        assert not prepared[1]
        assert not prepared[3]


def test_one_process_of_each_machine_decodes(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for number in range(12):
        folder = tmp_path / "zoo" / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 255, (8, 8, 3)).astype(np.uint8)).save(folder / f"{number}.png")
    for machines, locks in ((2, True), (1, False)):
        in_processes(4, _prepare, tmp_path, machines, locks)
