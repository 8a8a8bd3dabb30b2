"""Data-parallel processes and their collective operations, which are no-ops in a single process.

torchrun or `--devices` starts the processes and sets the rank of each in the environment; `init` creates the process
group. All processes must call the collective operations together.
"""

import gc
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

if dist.is_available():
    import torch.distributed.nn  # imported inside a group, it would keep that group and its threads alive

T = TypeVar("T")
_TIMEOUT = timedelta(minutes=30)  # long, because one process may still be decoding images
_alone = False  # whether collective operations act in this process only


def init(device: torch.device | None = None) -> None:
    """Join the process group if the environment defines one (WORLD_SIZE above 1)."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        return
    if device is not None and device.type == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl", timeout=_TIMEOUT)
    else:
        dist.init_process_group("gloo", timeout=_TIMEOUT)


def shutdown() -> None:
    if _in_group():
        torch.compiler.reset()  # a compiled network keeps the group and its threads alive
        gc.collect()
        dist.destroy_process_group()


def _in_group() -> bool:
    return dist.is_available() and dist.is_initialized() and not _alone


def rank() -> int:
    return dist.get_rank() if _in_group() else 0


def world_size() -> int:
    return dist.get_world_size() if _in_group() else 1


@contextmanager
def alone() -> Iterator[None]:
    """Let collective operations act in this process only, which does work of its own while the others do theirs."""
    global _alone
    before, _alone = _alone, True
    try:
        yield
    finally:
        _alone = before


def local_world_size() -> int:
    """Return the number of processes of the group on this machine."""
    grouped = dist.is_available() and dist.is_initialized()
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if grouped else 1


def usable_cores() -> int:
    """Return the number of cores this process may use: a share of them if SELFADAPT_JOBS runs train at once."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, available // int(os.environ.get("SELFADAPT_JOBS", "1")))


def barrier() -> None:
    if world_size() > 1:
        dist.barrier()


def in_step(items: Iterable[T], most: int, *, every: int) -> Iterator[T]:
    """Yield the items of this process, and wait for the others after `every` of them. No process has more than `most`.

    Waiting has a time limit, so processes that share hours of work must not meet at its end only.
    """
    own = iter(items)
    for number in range(most):
        if number % every == 0:
            barrier()
        yield from islice(own, 1)


def all_reduce_sum(values: Tensor) -> Tensor:
    """Sum a tensor over the processes, in place."""
    if world_size() > 1:
        dist.all_reduce(values)
    return values


def all_reduce_max(values: Tensor) -> Tensor:
    """Take the elementwise maximum over the processes, in place."""
    if world_size() > 1:
        dist.all_reduce(values, dist.ReduceOp.MAX)
    return values


class Maximum:
    """The elementwise maximum of numbers of all processes, which is computed while this process does something else."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = torch.tensor(numbers, dtype=torch.int32)
        self._work = dist.all_reduce(self._numbers, dist.ReduceOp.MAX, async_op=True)

    def wait(self) -> list[int]:
        if self._work is not None:
            self._work.wait()
        return cast(list[int], self._numbers.tolist())


def all_gather_objects(value: object) -> list[object]:
    """Return the object of each process, in rank order."""
    if world_size() == 1:
        return [value]
    values: list[object] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def all_gather_rows(rows: Tensor) -> Tensor:
    """Concatenate the rows of all processes in rank order. The number of rows may differ between processes."""
    if world_size() == 1:
        return rows
    return torch.cat(all_to_all_rows([rows] * world_size()))


def all_gather_known(rows: Tensor, lengths: list[int]) -> Tensor:
    """Concatenate the rows of all processes in rank order, by a single collective: process r has `lengths[r]` rows."""
    if world_size() == 1:
        return rows
    padded = rows.new_zeros(max(lengths), *rows.shape[1:])
    padded[: len(rows)] = rows
    received = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(received, padded)
    return torch.cat([own[:length] for own, length in zip(received, lengths, strict=True)])


def all_to_all_known(rows: Tensor, lengths_out: list[int], lengths_in: list[int]) -> Tensor:
    """Send the first rows to process 0, the next to process 1 and so on, by a single collective.

    Return the rows received, in rank order. Both sides know the numbers of rows.
    """
    if world_size() == 1:
        return rows
    received = rows.new_empty(sum(lengths_in), *rows.shape[1:])
    dist.all_to_all_single(received, rows.contiguous(), lengths_in, lengths_out)
    return received


def all_to_all_rows(parts: list[Tensor]) -> list[Tensor]:
    """Send the r-th tensor to process r and return the tensors received, in rank order. Row counts may differ."""
    if world_size() == 1:
        return parts
    home = parts[0].device
    if dist.get_backend() == "nccl" and home.type == "cpu":  # a custom training loop whose group has only NCCL
        parts = [part.cuda() for part in parts]
    device = parts[0].device
    lengths_out = torch.tensor([len(part) for part in parts], device=device)
    lengths_in = torch.empty_like(lengths_out)
    dist.all_to_all_single(lengths_in, lengths_out)
    sizes_out, sizes_in = lengths_out.tolist(), lengths_in.tolist()
    received = parts[0].new_empty(sum(sizes_in), *parts[0].shape[1:])
    dist.all_to_all_single(received, torch.cat(parts).contiguous(), sizes_in, sizes_out)
    return list(received.to(home).split(sizes_in))
