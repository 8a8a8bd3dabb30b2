"""How long two processes stop for a checkpoint, and what torch.distributed.checkpoint costs where it is not needed.

Sharded: the targets of both processes, 64 MB each, and a network of 20 MB. In the background, training stops while the
state is copied; in the foreground, until all is hashed and on disk. Replicated: 64 MB that both processes hold, saved
by the first process, as selfadapt does, and by the same process through torch.distributed.checkpoint.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from selfadapt.core import distributed
from selfadapt.engine import checkpoint
from selfadapt.engine.checkpoint import Checkpoint

ROUNDS = 5


def _worker(folder: str) -> None:
    """Print the seconds of each kind of save, by round."""
    torch.set_num_threads(1)
    distributed.init()
    rows = torch.rand(16_000, 1000)
    model = {"weight": torch.rand(5_000_000)}
    sharded = Checkpoint(epoch=0, step=0, model=model, targets={"rows": rows}, state={})
    replicated = Checkpoint(epoch=0, step=1, model={"weight": rows}, targets=None, state={})

    def seconds(save: Callable[[], Callable[[], None]]) -> tuple[float, float]:
        distributed.barrier()
        began = time.perf_counter()
        wait = save()
        stopped = time.perf_counter() - began
        wait()
        distributed.barrier()
        return stopped, time.perf_counter() - began

    def run_round() -> list[float]:
        place = Path(folder)
        background, _ = seconds(lambda: checkpoint.save(place, sharded, sharded=True, in_background=True))
        foreground, _ = seconds(lambda: checkpoint.save(place, sharded, sharded=True))
        _, through_torch = seconds(lambda: checkpoint.save(place, replicated, in_background=True))
        _, by_first = seconds(lambda: checkpoint.save(place, replicated))
        return [background / foreground, through_torch / by_first]

    ratios = [run_round() for _ in range(ROUNDS + 1)][1:]
    if distributed.rank() == 0:
        print(json.dumps(ratios))
    distributed.shutdown()


def run() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        code = f"from benchmarks.checkpoints import _worker; _worker({folder!r})"
        shared = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29513"}
        processes = [
            subprocess.Popen([sys.executable, "-c", code], env={**shared, "RANK": str(rank)}, stdout=subprocess.PIPE)
            for rank in range(2)
        ]
        printed = [process.communicate(timeout=600)[0] for process in processes]
    stop, torchs = zip(*json.loads(printed[0]), strict=True)
    result = {}
    for name, values in (
        ("training stops, sharded in the background / in the foreground", stop),
        ("replicated, through torch.distributed.checkpoint / by the first process", torchs),
    ):
        result[name] = statistics.median(values)
        result[f"{name}, lowest of {ROUNDS}"] = min(values)
        result[f"{name}, highest of {ROUNDS}"] = max(values)
    return result
