"""Run a function of a test in several processes, which meet through a file."""

import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from forks import PATIENCE, fork
from selfadapt.core import distributed


def in_processes(count: int, work: Callable[..., None], folder: Path, *arguments: Any) -> None:
    """Run `work(folder, …)` in so many processes that form a group; any failure fails the test."""
    meeting = folder / f"meeting-{count}"
    meeting.unlink(missing_ok=True)
    workers = [fork(_work, rank, count, meeting, work, (folder, *arguments)) for rank in range(count)]
    for worker in workers:
        worker.join(PATIENCE)
        worker.kill()
    codes = [worker.exitcode for worker in workers]
    assert codes == [0] * count, codes


def _work(rank: int, count: int, meeting: Path, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=count)
    try:
        work(*arguments)
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # others may wait for this process for ever
    distributed.shutdown()
    for _ in range(200):  # a thread that was joined may be listed for a moment
        if not _waiting_threads():
            return
        time.sleep(0.05)
    raise AssertionError("a thread that outlives its group can end the process with an error")


def _waiting_threads() -> list[str]:
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]  # there on Linux only
    return [name for name in names if "gloo" in name]
