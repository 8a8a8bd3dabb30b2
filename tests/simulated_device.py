"""CPU tensors that claim to be on cuda:0 and log every time the host waits for the device.

Within `simulated_device()`, `.to("cuda")`, factories with that device, pinned memory and events work. A copy to the
host that does not wait returns poison until an event that was recorded after it has been waited for, so that a value
read too early shows.
"""

import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.__future__ import set_overwrite_module_params_on_conversion as set_overwrite
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("cuda:0")
_WAITING = {
    "_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "equal",
    "bincount", "is_nonzero", "repeat_interleave", "allclose",
}  # fmt: skip
_CHECKED_ON_HOST = (Tensor.quantile, torch.nn.functional.one_hot)  # which read values only if these are on the CPU
_BLOCKING_FACTORIES = (torch.tensor, torch.as_tensor, torch.asarray)


class OnDevice(Tensor):
    """A tensor whose values are `held` on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnDevice":
        tensor: OnDevice = Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            requires_grad=held.requires_grad,
        )  # fmt: skip
        tensor.held = held.detach()
        return tensor

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return DEVICE

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"OnDevice({self.held})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _device().run(func, args, kwargs or {})


class SimulatedEvent:
    """Stands in for torch.Event: waiting for it completes the copies to the host that were started before it."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.number = -1

    def record(self, *_: Any) -> None:
        self.number = _device().started

    def query(self) -> bool:
        return self.number <= _device().waited_for

    def synchronize(self) -> None:
        if not self.query():
            if self.number < _device().started:
                _device().late.append(_place("event"))
                _device().complete(self.number)
            else:
                _device().log("event")


class SimulatedDevice(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.syncs: list[str] = []  # what made the host wait, and where
        self.late: list[str] = []  # waits for a copy after which more work was queued: the device stays busy
        self.started = self.waited_for = 0  # operations
        self._copies: list[tuple[int, Tensor, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        ours = bool(args) and isinstance(args[0], OnDevice)
        if func in (Tensor.to, Tensor.cuda, Tensor.cpu):
            return self._to(func, args, kwargs)
        if func is Tensor.pin_memory:
            return _pinned(args[0].clone())
        if func is Tensor.is_pinned:
            return getattr(args[0], "pinned", False)
        if ours and func is Tensor.tolist:
            self.log("tolist")
            return args[0].held.tolist()
        if ours and func in (Tensor.numpy, Tensor.__array__):
            self.log("numpy")
            raise TypeError("can't convert cuda:0 device type tensor to numpy; use Tensor.cpu() first")
        if ours and func in _CHECKED_ON_HOST:
            return OnDevice(func(args[0].held, *args[1:], **kwargs))
        if ours and func is Tensor.new_tensor:
            self.log("new_tensor")
            return OnDevice(args[0].held.new_tensor(*args[1:], **kwargs))
        if kwargs.pop("pin_memory", False):
            return _pinned(func(*args, **kwargs))
        if _is_device(kwargs.get("device")) and not ours:
            if func in _BLOCKING_FACTORIES:
                self.log(func.__name__)
            return OnDevice(func(*args, **{**kwargs, "device": "cpu"}))
        return func(*args, **kwargs)

    def _to(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Copy between host and device, or convert where a tensor is."""
        tensor, *rest = args
        given = [*rest, kwargs.get("device"), kwargs.get("dtype")]
        device = DEVICE if func is Tensor.cuda else torch.device("cpu") if func is Tensor.cpu else tensor.device
        dtype = tensor.dtype
        for value in given:
            if isinstance(value, Tensor):
                device, dtype = value.device, value.dtype
            elif isinstance(value, str | torch.device):
                device = torch.device(value)
            elif isinstance(value, torch.dtype):
                dtype = value
        waits = not (kwargs.get("non_blocking") or any(value is True for value in rest[:3]))
        if dtype != tensor.dtype or "memory_format" in kwargs or kwargs.get("copy"):
            extra = {name: kwargs[name] for name in ("memory_format", "copy") if name in kwargs}
            tensor = Tensor.to(tensor, dtype, **extra)
        if device.type == tensor.device.type:
            return tensor
        self.started += 1
        if device.type == "cpu":
            return self._to_host(tensor.held, waits=waits)
        if waits or not getattr(args[0], "pinned", False):
            self.log("copy to the device")
        return _Arrive.apply(tensor)

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        self.started += 1
        flat = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
        known = {id(value.held): value for value in flat if isinstance(value, OnDevice)}
        name = func._schema.name.removeprefix("aten::")
        plain_args, plain = tree_map(_held, (args, kwargs))
        if "device" in plain:
            plain["device"] = torch.device("cpu")
        plain.pop("pin_memory", None)
        if name == "copy_":
            target, source, *non_blocking = args
            crosses = isinstance(target, OnDevice) != isinstance(source, OnDevice)
            waits = not (any(non_blocking) or kwargs.get("non_blocking")) or not _async_source(target, source)
            if crosses and waits:
                self.log("copy_")
        elif name in _WAITING or _indexes_by_mask(name, args):
            self.log(name)
        else:
            self._check_devices(name, flat)
        result = func(*plain_args, **plain)
        return tree_map(lambda value: _wrapped(value, known), result)

    def _check_devices(self, name: str, tensors: Sequence[Tensor]) -> None:
        """Refuse what a real device refuses, and log an index on the host, which is copied."""
        if torch._C._current_autograd_node() is not None:
            return  # autograd itself fills in zeros, which are ordinary tensors here
        if any(not isinstance(tensor, OnDevice) and tensor.ndim for tensor in tensors):
            if not name.startswith("index"):
                raise RuntimeError(f"{name}: expected all tensors to be on the same device")
            self.log(f"{name} with an index on the host")

    def _to_host(self, values: Tensor, *, waits: bool) -> Tensor:
        if waits:
            self.log("copy to the host")
            return values
        poison = torch.full_like(values, 77 if values.dtype != torch.bool else True)
        self._copies.append((self.started, poison, values))
        return poison

    def log(self, what: str) -> None:
        """Note a wait, which ends when all operations have finished."""
        self.syncs.append(_place(what))
        self.complete(self.started)

    def complete(self, number: int) -> None:
        """Finish the operations up to this one."""
        self.waited_for = max(self.waited_for, number)
        for started, poison, values in self._copies:
            if started <= number:
                poison.copy_(values)
        self._copies = [copy for copy in self._copies if copy[0] > number]


class _Arrive(torch.autograd.Function):
    """A copy to the device."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return OnDevice(tensor.detach().clone())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0]


_current: list[SimulatedDevice] = []


def _device() -> SimulatedDevice:
    return _current[-1]


def _place(what: str) -> str:
    """What happened at which line of selfadapt."""
    frames = [frame for frame in traceback.extract_stack() if "/selfadapt/" in frame.filename]
    place = f"{frames[-1].filename.rpartition('/selfadapt/')[2]}:{frames[-1].lineno}" if frames else "a test"
    return f"{what} at {place}"


def _pinned(tensor: Tensor) -> Tensor:
    tensor.pinned = True  # type: ignore[attr-defined]
    return tensor


def _held(value: Any) -> Any:
    return value.held if isinstance(value, OnDevice) else value


def _is_device(value: Any) -> bool:
    return (isinstance(value, str) and value.startswith("cuda")) or (
        isinstance(value, torch.device) and value.type == "cuda"
    )


def _async_source(target: Tensor, source: Tensor) -> bool:
    host = source if isinstance(target, OnDevice) else target
    return bool(getattr(host, "pinned", False))


def _indexes_by_mask(name: str, args: Any) -> bool:
    if name not in ("index", "index_put", "index_put_", "_index_put_impl_"):
        return False
    masks = [own for own in args[1] if own is not None and own.dtype in (torch.bool, torch.uint8)]
    fills = name != "index" and len(args[1]) == 1 and args[2].ndim == 0 and not isinstance(args[2], OnDevice)
    return bool(masks) and not fills  # a mask with a number is a masked fill


def _wrapped(value: Any, known: dict[int, OnDevice]) -> Any:
    if not isinstance(value, Tensor) or isinstance(value, OnDevice):
        return value
    return known.get(id(value)) if id(value) in known else OnDevice(value)


@contextmanager
def simulated_device() -> Iterator[SimulatedDevice]:
    device = SimulatedDevice()
    _current.append(device)
    try:
        with ExitStack() as stack:
            stack.enter_context(patch.object(torch, "Event", SimulatedEvent))
            stack.callback(set_overwrite, torch.__future__.get_overwrite_module_params_on_conversion())
            set_overwrite(True)  # a parameter whose data is replaced would stay an ordinary tensor
            stack.enter_context(device)
            yield device
    finally:
        _current.pop()
