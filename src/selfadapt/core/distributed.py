"""The processes of a run, and what they say to each other. One process alone says nothing.

torchrun, or `--devices`, starts the processes and tells each its place in the environment. `init` makes them a group.
Every function below is called by all of them at the same time.
"""

import gc
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

if dist.is_available():
    import torch.distributed.nn  # first imported within a group, it keeps that group and its threads for ever

_PATIENCE = timedelta(minutes=30)  # for a process that does not answer, such as one that decodes images


def init(device: torch.device | None = None) -> None:
    """Become one of several processes, if the environment says so."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        return
    if device is not None and device.type == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl", timeout=_PATIENCE)
    else:
        dist.init_process_group("gloo", timeout=_PATIENCE)


def shutdown() -> None:
    if _together():
        torch.compiler.reset()  # a network that was compiled holds the group, and its threads for ever
        gc.collect()
        dist.destroy_process_group()


def _together() -> bool:
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    return dist.get_rank() if _together() else 0


def world_size() -> int:
    return dist.get_world_size() if _together() else 1


def usable_cores() -> int:
    """How many cores this process may use: its share, where several trainings run at once."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, available // int(os.environ.get("SELFADAPT_JOBS", "1")))


def barrier() -> None:
    if world_size() > 1:
        dist.barrier()


def all_reduce_sum(values: Tensor) -> Tensor:
    """The sum of this tensor over the processes, in place."""
    if world_size() > 1:
        dist.all_reduce(values)
    return values


def all_reduce_max(values: Tensor) -> Tensor:
    """The largest of this tensor over the processes, in place."""
    if world_size() > 1:
        dist.all_reduce(values, dist.ReduceOp.MAX)
    return values


def all_gather_objects(value: object) -> list[object]:
    """This object of each process, in the order of their ranks."""
    if world_size() == 1:
        return [value]
    values: list[object] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def all_gather_rows(rows: Tensor) -> Tensor:
    """The rows of every process, one below the other in the order of their ranks. Each may have another number."""
    if world_size() == 1:
        return rows
    return torch.cat(all_to_all_rows([rows] * world_size()))


def all_to_all_rows(parts: list[Tensor]) -> list[Tensor]:
    """Send the r-th part to process r, and return what each process sent here. Parts may differ in their rows."""
    if world_size() == 1:
        return parts
    home = parts[0].device
    if dist.get_backend() == "nccl" and home.type == "cpu":  # a loop of a user's own, whose processes meet on GPUs only
        parts = [part.cuda() for part in parts]
    device = parts[0].device
    lengths_out = torch.tensor([len(part) for part in parts], device=device)
    lengths_in = torch.empty_like(lengths_out)
    dist.all_to_all_single(lengths_in, lengths_out)
    sizes_out, sizes_in = lengths_out.tolist(), lengths_in.tolist()
    received = parts[0].new_empty(sum(sizes_in), *parts[0].shape[1:])
    dist.all_to_all_single(received, torch.cat(parts).contiguous(), sizes_in, sizes_out)
    return list(received.to(home).split(sizes_in))
