"""Data-parallel processes and their collective operations, which are no-ops in a single process.

A launcher starts the processes and sets the rank of each in the environment (launched.py); `init` creates the process
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

from selfadapt.core.device import copies_from_pinned
from selfadapt.core.errors import UserError
from selfadapt.core.launched import adopt_slurm, is_launched, local_rank, share_of

if dist.is_available():
    import torch.distributed.nn  # imported inside a group, it would keep that group and its threads alive
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

T = TypeVar("T")
_TIMEOUT = timedelta(minutes=30)  # long, because one process may still be computing what the others wait for
_NO_TIMEOUT = timedelta(days=365)
_background: "tuple[dist.ProcessGroup | None, dist.ProcessGroup] | None" = None  # the main group, and its companion
_alone = False  # whether collective operations act in this process only


def init(device: torch.device | None = None) -> None:
    """Join the process group if the environment defines one (WORLD_SIZE above 1, or a task of SLURM).

    Raises:
        UserError: If there is a group already that cannot exchange tensors on the CPU.
    """
    adopt_slurm()
    if not is_launched():
        return
    if dist.is_initialized():
        if "cpu:" not in (found := dist.get_backend_config()):
            raise UserError(
                f"the process group has the backend {found}, which cannot exchange tensors on the CPU; create it with "
                'torch.distributed.init_process_group("cpu:gloo,cuda:nccl")'
            )
        return
    backend = "gloo"
    if device is not None and copies_from_pinned(device):
        torch.get_device_module(device).set_device(device)
        backend = f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}"
    store, rank, world_size = next(rendezvous("env://", timeout=_TIMEOUT))
    # An elastic agent keeps its store when it restarts the processes, which must not find what their predecessors left.
    store = PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=_TIMEOUT)


def background_group() -> dist.ProcessGroup | None:
    """Return a group of all processes for work that may take long, even in another thread; None in a single process.

    Its messages do not mix with those of the main group. All processes must make the first call together.
    """
    global _background
    if not _in_group():
        return None
    # Another library may have replaced the main group.
    if _background is None or _background[0] is not dist.group.WORLD:
        group = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=_NO_TIMEOUT))
        _background = dist.group.WORLD, group
    return _background[1]


@contextmanager
def first_on_machine() -> Iterator[None]:
    """Let the first process of each machine run the block before the others, however long it takes.

    The others then find what it has prepared. If it fails, its connection breaks, and they fail too.
    """
    follows = local_rank(rank()) > 0
    if follows:
        wait_for_all()
    yield
    if not follows:
        wait_for_all()


def wait_for_all() -> None:
    """Wait for the other processes without a time limit, while no checkpoint is written in the background."""
    if world_size() > 1:
        dist.barrier(background_group())


def shutdown() -> None:
    global _background
    if _in_group():
        _background = None
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
    """Let collective operations act in this process only, which works alone while the others do the same."""
    global _alone
    before, _alone = _alone, True
    try:
        yield
    finally:
        _alone = before


def usable_cores() -> int:
    """Return the number of cores this process may use: its share of those of the machine."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return share_of(available)


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


def from_first(value: T) -> T:
    """Return the object of rank 0, in every process."""
    return cast(T, all_gather_objects(value if rank() == 0 else None)[0])


class Maximum:
    """The elementwise maximum of numbers of all processes, which is computed while this process does something else."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = torch.tensor(numbers, dtype=torch.int32)
        self._work = dist.all_reduce(self._numbers, dist.ReduceOp.MAX, async_op=True)

    def wait(self) -> list[int]:
        if self._work is not None:
            self._work.wait()
        return cast(list[int], self._numbers.tolist())


def all_gather_objects(value: T) -> list[T]:
    """Return the object of each process, in rank order."""
    if world_size() == 1:
        return [value]
    values = [value] * world_size()
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
    if home.type == "cpu" and "cpu:" not in dist.get_backend_config():  # a custom loop, whose group is of GPUs only
        parts = [part.to(torch.accelerator.current_accelerator() or home) for part in parts]
    device = parts[0].device
    lengths_out = torch.tensor([len(part) for part in parts], device=device)
    lengths_in = torch.empty_like(lengths_out)
    dist.all_to_all_single(lengths_in, lengths_out)
    sizes_out, sizes_in = lengths_out.tolist(), lengths_in.tolist()
    received = all_to_all_known(torch.cat(parts), sizes_out, sizes_in)
    return list(received.to(home).split(sizes_in))
