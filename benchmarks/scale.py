"""The cost of targets at scale: bytes per row, time per update, and communication between processes.

ImageNet's shape is 1,281,167 × 1,000. An update is that of one batch of 256. "copy" is a plain copy of the bytes that
an update must move at least: the rows read and written. Growth is the time of an update with 10^7 rows over that with
10^4. "sharded / replicated" is an update by two processes on this machine, on rows of 1,000 classes. "sent" is the
number of bytes that a process passes to torch for the others in a step of the training loop, over the formulas of
docs/scale.md.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.timing import time_ratio
from benchmarks.traffic import step_bytes
from selfadapt import Storage, TargetStore
from selfadapt.core import distributed
from selfadapt.data.batch import Dealt

BATCH, CLASSES = 256, 1_000
IMAGENET = 1_281_167
KINDS = ("float32", "float16", "file", "topk:8", "int8")


def _store(kind: str, rows: int, classes: int, folder: Path) -> TargetStore:
    labels = torch.arange(rows) % classes
    return TargetStore.from_labels(labels, classes, 0.9, Storage.parse(kind, file=folder / f"{kind}-{rows}.bin"))


def _bytes() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        dense = _store("float32", 1000, CLASSES, Path(folder)).rows.nbytes
        return {
            f"bytes of a row, float32 / {kind}": dense / _store(kind, 1000, CLASSES, Path(folder)).rows.nbytes
            for kind in ("float16", "topk:8", "int8")
        }


def _update_against_copy() -> dict[str, float]:
    """Row formats with 1,000 classes; 50,000 rows, so that they do not fit into the CPU cache."""
    ratios = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            store = _store(kind, 50_000, CLASSES, Path(folder))
            prediction = torch.randn(BATCH, CLASSES).softmax(1)
            batches = [torch.randperm(50_000)[:BATCH] for _ in range(32)]
            turn = iter(range(10**9))
            read, kept = torch.empty(BATCH, CLASSES), torch.randn(50_000, CLASSES)
            size = BATCH * store.rows.nbytes // 50_000
            source, target = torch.empty(size, dtype=torch.uint8), torch.empty(size, dtype=torch.uint8)

            def copy() -> None:
                target.copy_(source)  # noqa: B023
                source.copy_(target)  # noqa: B023

            def update() -> None:
                store.update(batches[next(turn) % 32], prediction)  # noqa: B023

            ratios[f"update / copy of its bytes, {kind}"] = time_ratio(update, copy, rounds=60)

            def rows_there_and_back() -> None:
                index = batches[next(turn) % 32]  # noqa: B023
                read.copy_(kept[index])  # noqa: B023
                kept[index] = read  # noqa: B023

            ratios[f"update / copy of dense rows there and back, {kind}"] = time_ratio(
                update, rows_there_and_back, rounds=60
            )
    return ratios


def _growth() -> dict[str, float]:
    """Ten classes, so that 10^7 dense rows fit into memory."""
    ratios = {}
    prediction = torch.randn(BATCH, 10).softmax(1)
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("float32", "float16", "topk:4"):
            small, large = (_store(kind, rows, 10, Path(folder)) for rows in (10_000, 10_000_000))

            def side(store: TargetStore) -> object:
                batches = [torch.randint(len(store), (2 * BATCH,)).unique()[:BATCH] for _ in range(64)]
                batches = [batch[torch.randperm(len(batch))] for batch in batches]
                turn = iter(range(10**9))
                return lambda: store.update((index := batches[next(turn) % 64]), prediction[: len(index)])

            first, second = side(large), side(small)
            assert callable(first)
            assert callable(second)
            ratios[f"update with 10^7 rows / with 10^4, {kind}"] = time_ratio(first, second, rounds=200)
    return ratios


class _Count:
    """Replaces calls of torch and counts the bytes that this process sends to others."""

    def __init__(self) -> None:
        self.sent = 0
        self._exchange, self._gather = dist.all_to_all_single, dist.all_gather
        dist.all_to_all_single, dist.all_gather = self.exchange, self.gather  # type: ignore[assignment]

    def exchange(self, received: Tensor, given: Tensor, sizes_in: list[int], sizes_out: list[int]) -> None:
        self.sent += (sum(sizes_out) - sizes_out[distributed.rank()]) * given[:1].nbytes
        self._exchange(received, given, sizes_in, sizes_out)

    def gather(self, received: list[Tensor], given: Tensor) -> None:
        self.sent += (distributed.world_size() - 1) * given.nbytes
        self._gather(received, given)


def _worker(kind: str, rounds: int) -> None:
    """Seconds and bytes of an update with sharded and with replicated rows, alternating, in several processes."""
    torch.set_num_threads(1)
    distributed.init()
    count = _Count()
    folder, parts, rank = Path(os.environ["FOLDER"]), distributed.world_size(), distributed.rank()
    stores = (_store(f"sharded:{kind}", 20_000, CLASSES, folder), _store(kind, 20_000, CLASSES, folder))
    prediction = torch.randn(BATCH // parts, CLASSES).softmax(1)
    ratios, sent = [], [0, 0]
    for turn in range(rounds):
        index = torch.randperm(20_000, generator=torch.Generator().manual_seed(turn))[:BATCH]
        dealt = Dealt(index.tensor_split(parts), index.tensor_split(parts)[rank], rank)
        seconds = []
        for number, store in enumerate(stores):
            distributed.barrier()
            before, began = count.sent, time.perf_counter()
            with store.step(dealt):
                store.move(dealt.own, prediction)
            distributed.barrier()
            seconds.append(time.perf_counter() - began)
            sent[number] += count.sent - before
        ratios.append(seconds[0] / seconds[1])
    if distributed.rank() == 0:
        print(json.dumps([sorted(ratios)[len(ratios) // 2], *(total / rounds for total in sent)]))
    distributed.shutdown()


def _sharded() -> dict[str, float]:
    ratios, sent = {}, {}
    for parts in (2, 4):
        for kind in ("float32", "topk:8"):
            with tempfile.TemporaryDirectory() as folder:
                code = f"from benchmarks.scale import _worker; _worker({kind!r}, 60)"
                shared = {
                    **os.environ,
                    "WORLD_SIZE": str(parts),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": "29511",
                    "FOLDER": folder,
                }
                workers = [
                    subprocess.Popen(
                        [sys.executable, "-c", code], env={**shared, "RANK": str(rank)}, stdout=subprocess.PIPE
                    )
                    for rank in range(parts)
                ]
                said = [worker.communicate(timeout=300)[0] for worker in workers]
            ratio, *counted = json.loads(said[0])
            if parts == 2:
                ratios[f"update of two processes, sharded / replicated, {kind}"] = ratio
            for how, prefix, bytes_sent in zip(("sharded", "replicated"), ("sharded:", ""), counted, strict=True):
                formula = step_bytes(f"{prefix}{kind}", BATCH, CLASSES, parts)
                sent[f"sent by each of {parts} processes, counted / by formula, {how} {kind}"] = bytes_sent / formula
    return ratios | sent


def run() -> dict[str, float]:
    return _bytes() | _update_against_copy() | _growth() | _sharded()
