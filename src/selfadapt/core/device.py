"""The device of a computation: how it is chosen, and copies between it and the host that do not wait.

A host that waits for the device leaves it idle afterwards, until the next work arrives. Copies from pinned memory and
back do not wait; what comes back may be read once an event after the copy has passed.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from selfadapt.core.errors import UserError

DEVICES = ("cpu", "cuda", "mps", "xpu")
_PINNING = ("cuda", "xpu")
_KEPT = WeakTensorKeyDictionary()  # copies on a device


def device_name(name: str) -> str:
    """Return the kind of device that a name stands for: cpu, cuda, mps or xpu."""
    return choose_device(name).type if name in ("auto", "rocm") else name


def choose_device(name: str) -> torch.device:
    """Return the device of this name; each of several processes gets a separate GPU, and concurrent trainings share.

    The GPU becomes the current one of this process, which otherwise would allocate memory on the first GPU, too.

    Args:
        name: "auto" for the accelerator of this machine or else the CPU, "cpu", "cuda", "rocm", "xpu" or "mps".

    Raises:
        UserError: If there is no such device.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if name == "auto":
        name = "cpu" if accelerator is None else accelerator.type
    elif name == "rocm":
        name = "cuda"  # as torch calls it
    if name in _PINNING and "LOCAL_RANK" in os.environ:
        place, visible = int(os.environ["LOCAL_RANK"]), torch.accelerator.device_count()
        # A scheduler may show each process its GPU alone, which then is the first (SLURM's --gpus-per-task).
        shared = "SELFADAPT_JOBS" in os.environ or visible == 1
        name = f"{name}:{place % max(1, visible) if shared else place}"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
        if device.index is not None and device.type in _PINNING:
            torch.accelerator.set_device_index(device)
        if device.type in DEVICES:
            return device
    except (RuntimeError, AssertionError):
        pass
    raise UserError(f"--device {name!r} cannot be used here; choose auto or cpu")


def make_deterministic(device: torch.device, deterministic: bool = True) -> None:
    """Make results repeatable to the bit as far as the device can, or let it choose the fastest algorithms."""
    if device.type == "cpu":
        return
    if deterministic:
        # Matrix products of CUDA are repeatable only with workspaces of fixed size, set before the first of them.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = not deterministic
    torch.use_deterministic_algorithms(deterministic, warn_only=True)


def has_native_bfloat16(device: torch.device) -> bool:
    """Return whether an accelerator computes in bfloat16 by itself. False for a CPU, where it is usually slower."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "xpu" and bool(torch.xpu.is_bf16_supported(including_emulation=False))


def prefers_channels_last(name: str, precision: str) -> bool:
    """Return whether convolutions are faster in this layout: on CPUs, and on GPUs in half precision. MPS aborts."""
    kind = name.partition(":")[0]
    return kind == "cpu" or (kind in _PINNING and precision != "float32")


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Compute in this precision, where an operation allows it, within a block."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=getattr(torch, precision))


def copies_from_pinned(device: torch.device) -> bool:
    """Return whether the device copies to and from pinned memory while the host does something else."""
    return device.type in _PINNING


def random_states(device: torch.device) -> dict[str, Tensor]:
    """Return the states of torch's random generators for the CPU and the device, by kind of device."""
    states = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        states[device.type] = torch.get_device_module(device).get_rng_state(device)
    return states


def set_random_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Set the states that `random_states` returned. That of another kind of device is ignored."""
    torch.set_rng_state(states["cpu"])
    if device.type != "cpu" and device.type in states:
        torch.get_device_module(device).set_rng_state(states[device.type], device)


@contextmanager
def keeping_random_states(device: torch.device) -> Iterator[None]:
    """Restore the states of the random generators after the block, in which code seeds them."""
    before = random_states(device)
    try:
        yield
    finally:
        set_random_states(before, device)


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to the device. The host does not wait for a copy from it."""
    if values.device == device or values.device.type != "cpu":
        return values.to(device)
    if copies_from_pinned(device):
        values = values.pin_memory()
    return values.to(device, non_blocking=True)


def kept_on(device: torch.device, values: Tensor) -> Tensor:
    """Return a tensor on the device. It is copied there once and kept as long as the original."""
    if values.device == device:
        return values
    if values not in _KEPT or _KEPT[values].device != device:
        _KEPT[values] = values.to(device)
    return cast(Tensor, _KEPT[values])


class Arriving:
    """Tensors on their way to the host, in the order in which the device computes them."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        devices = {tensor.device for tensor in tensors if copies_from_pinned(tensor.device)}
        self._copies = [tensor.to("cpu", non_blocking=tensor.device in devices) for tensor in tensors]
        self._event = torch.Event(devices.pop()) if devices else None
        if self._event is not None:
            self._event.record()

    @property
    def arrived(self) -> bool:
        """Whether `wait` would return at once."""
        return self._event is None or self._event.query()

    def wait(self) -> list[Tensor]:
        """Return the tensors on the host, as soon as they are there."""
        if self._event is not None:
            self._event.synchronize()
        return self._copies
