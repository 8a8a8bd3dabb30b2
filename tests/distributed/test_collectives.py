"""Collectives and bytes that a training step takes for its targets, against the formulas of docs/scale.md.

On a device, the step does not wait for it either: in several processes as in one (tests/engine/test_host_syncs.py).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from benchmarks.traffic import row_bytes, step_bytes, step_collectives, table_bytes
from torch import Tensor, nn

from distributed.group import in_processes
from networks import Smooth
from selfadapt import Storage, TargetStore
from selfadapt.core import distributed
from selfadapt.core.device import to_device
from selfadapt.data.batch import Dealt
from selfadapt.data.dataset import Samples
from selfadapt.data.images.storage import TensorImages
from selfadapt.data.loader import SampleLoader
from selfadapt.engine.fit import FitSettings, Training
from selfadapt.objectives.erm import ERM
from simulated_device import DEVICE, OnDevice, simulated_device

pytestmark = pytest.mark.distributed
STORES = (
    "float32",
    "float16",
    "int8",
    "topk:8",
    "sharded:float32",
    "sharded:float16",
    "sharded:topk:8",
    "sharded:file",
)
_COLLECTIVES = (
    "all_to_all_single", "all_gather", "all_reduce", "all_gather_object", "broadcast", "reduce_scatter", "all_to_all",
)  # fmt: skip
_SAMPLES, _CLASSES, _BATCH, _STEPS = 240, 50, 24, 10


class Counted:
    """Calls of torch's collectives, and the bytes that this process passes to them for others."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.sent = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        with patch.multiple(dist, **{name: self._wrapped(name) for name in _COLLECTIVES}):
            yield

    def _wrapped(self, name: str) -> Any:
        call = getattr(dist, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            others = dist.get_world_size() - 1
            if name == "all_to_all_single":
                _, given, _, sizes = args
                self.sent += (sum(sizes) - sizes[dist.get_rank()]) * given[:1].nbytes
            elif isinstance(args[-1], Tensor):
                self.sent += others * args[-1].nbytes
            return call(*args, **kwargs)

        return counted


def _parts(step: int) -> tuple[Tensor, ...]:
    order = torch.randperm(_SAMPLES, generator=torch.Generator().manual_seed(3))
    return order[step * _BATCH : (step + 1) * _BATCH].tensor_split(distributed.world_size())


def _dealt(step: int, unreadable: int | None, *, at_home: bool) -> Dealt:
    """The samples of a step: a share of the batch or, at home, those of the batch that belong to this process."""
    rank, parts = distributed.rank(), _parts(step)
    if at_home:
        batch = torch.cat(parts)
        rank, parts = 0, (batch[batch % distributed.world_size() == rank],)
    own = parts[rank] if unreadable is None else parts[rank][parts[rank] != unreadable]
    return Dealt(parts, own, rank, at_home)


def _prediction(index_B: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(_SAMPLES, _CLASSES, generator=generator).softmax(1)[index_B]


def _store(name: str, folder: Path, device: torch.device | str = "cpu") -> TargetStore:
    storage = Storage.parse(name, device=device, file=folder / f"{name.replace(':', '-')}.bin")
    return TargetStore.from_labels(torch.arange(_SAMPLES) % _CLASSES, _CLASSES, 0.7, storage)


def _move(store: TargetStore, unreadable: int | None = None, *, at_home: bool = False) -> None:
    """Take an epoch in which every process moves the rows dealt to it, but for the unreadable sample."""
    device = store.rows.device
    for step in range(_STEPS):
        dealt = _dealt(step, unreadable, at_home=at_home)
        with store.step(dealt):
            store.move(to_device(dealt.own, device), to_device(_prediction(dealt.own), device))


def _moved(store: TargetStore, unreadable: int | None = None, *, at_home: bool = False) -> Tensor:
    _move(store, unreadable, at_home=at_home)
    return store.read(torch.arange(_SAMPLES))


def _count_all(folder: Path) -> None:
    torch.manual_seed(0)
    processes = distributed.world_size()
    for name in STORES:
        store, counted = _store(name, folder), Counted()
        with counted.counting():
            _move(store)
        assert len(counted.calls) == _STEPS * step_collectives(name, processes) <= 2 * _STEPS, (name, counted.calls)
        sent = distributed.all_reduce_sum(torch.tensor([float(counted.sent)])).item()
        expected = processes * _STEPS * step_bytes(name, _BATCH, _CLASSES, processes)
        tolerance = 0.2 if name.startswith("sharded:") else 0  # owners are drawn
        assert sent == pytest.approx(expected, rel=tolerance), name
        assert store.rows.nbytes == table_bytes(name, _SAMPLES, _CLASSES, processes), name
        for unreadable in (None, int(_parts(2)[-1][1])):
            torch.save(_moved(_store(name, folder), unreadable), folder / f"{name.replace(':', '-')}-{unreadable}.pt")


def _count_at_home(folder: Path) -> None:
    for name in (store for store in STORES if store.startswith("sharded:")):
        for unreadable in (None, int(_parts(2)[-1][1])):
            store, counted = _store(name, folder), Counted()
            with counted.counting():
                _move(store, unreadable, at_home=True)
            assert len(counted.calls) == step_collectives(name, distributed.world_size(), "shards") == 0
            assert counted.sent == step_bytes(name, _BATCH, _CLASSES, distributed.world_size(), "shards") == 0
            expected = _moved(_store(name, folder), unreadable)
            assert torch.equal(store.read(torch.arange(_SAMPLES)), expected), name
    replicated = _moved(_store("float32", folder), at_home=True)
    assert torch.equal(replicated, _moved(_store("float32", folder)))


@pytest.mark.parametrize("count", [2, 4])
def test_no_collectives_for_samples_that_stay_with_their_process(count: int, tmp_path: Path) -> None:
    """The rows have the same bits as if they were sent."""
    in_processes(count, _count_at_home, tmp_path)


@pytest.mark.parametrize("count", [2, 4])
def test_collectives_bytes_and_rows_of_a_step(count: int, tmp_path: Path) -> None:
    in_processes(count, _count_all, tmp_path)
    (tmp_path / "one").mkdir()
    found = {path.name: torch.load(path) for path in tmp_path.glob("*.pt")}
    assert len(found) == 2 * len(STORES)
    for name in STORES:
        plain = name.removeprefix("sharded:")
        for unreadable in (None, *(int(own.rpartition("-")[2][:-3]) for own in found if "None" not in own)):
            key = f"{name.replace(':', '-')}-{unreadable}.pt"
            expected = _moved(_store(plain, tmp_path / "one"), unreadable)
            exact = plain in ("float32", "file", "topk:8")
            torch.testing.assert_close(found[key], expected, rtol=0, atol=1e-5 if exact else 2e-2, msg=key)


def _values(argument: Any) -> Any:
    """A tensor, or a list of them, without the simulated device."""
    if isinstance(argument, list):
        return [_values(own) for own in argument]
    return argument.held if isinstance(argument, OnDevice) else argument


def _without_waiting(folder: Path) -> None:
    """Collectives exchange the values of the simulated device, as NCCL does, without the host."""

    def on_device(call: Callable[..., Any]) -> Any:
        return lambda *args, **kwargs: call(*map(_values, args), **kwargs)

    unreadable = int(_parts(2)[-1][1])
    for name in (*STORES, "pinned:float32", "sharded:pinned:topk:8"):
        expected = _moved(_store(name, folder), unreadable)
        collectives = {call: on_device(getattr(dist, call)) for call in ("all_to_all_single", "all_gather")}
        with simulated_device() as device, patch.multiple(dist, **collectives):
            store = _store(name, folder, DEVICE)
            device.syncs.clear()
            _move(store, unreadable)
            assert device.syncs == [], name
            assert torch.equal(store.read(torch.arange(_SAMPLES)), expected), name
            if name.startswith("sharded:"):
                store = _store(name, folder, DEVICE)
                device.syncs.clear()
                _move(store, unreadable, at_home=True)
                assert device.syncs == [], name
                assert torch.equal(store.read(torch.arange(_SAMPLES)), expected), name


def test_no_step_of_several_processes_waits_for_a_device(tmp_path: Path) -> None:
    in_processes(2, _without_waiting, tmp_path)


@pytest.mark.parametrize("name", ["float32", "float16", "int8", "topk:8", "file"])
def test_the_size_of_a_table(name: str, tmp_path: Path) -> None:
    store = _store(name, tmp_path)
    assert store.rows.nbytes == table_bytes(name, _SAMPLES, _CLASSES)
    assert row_bytes(f"sharded:{name}", _CLASSES) * _SAMPLES == store.rows.nbytes


def _stop_together(folder: Path) -> None:
    """All processes learn a step later that one of them got a signal, without a collective that waits."""
    from selfadapt.engine.interrupt import Agreement

    agreement, heard = Agreement(), []
    for step in range(4):
        heard.append(agreement.reached(step == 1 and distributed.rank() == 1, step == 0))
        if heard[-1][0]:
            break
    assert heard == [(False, False), (False, True), (True, False)]


def test_processes_stop_at_the_same_step(tmp_path: Path) -> None:
    in_processes(2, _stop_together, tmp_path)


def _reductions_of_a_compiled_step(folder: Path) -> None:
    """Micro-batches of a step are reduced once, whether the network is compiled or not."""
    compiled: list[dict[str, Any]] = []
    for mode in ("none", "default"):
        with patch.object(nn.Module, "compile", lambda self, **given: compiled.append(given)):
            torch.manual_seed(0)
            training = Training(
                ERM(), ERM().build(Smooth(), 3), None, _loader(),
                FitSettings(micro_batches=4, compile=mode), num_classes=3, device=torch.device("cpu"),
            )  # fmt: skip
        reduced: list[int] = []

        def reduce(state, bucket):  # type: ignore[no-untyped-def]  # torch refuses annotations other than its own
            state.append(bucket.buffer().numel())
            future: torch.futures.Future[Tensor] = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        cast(Any, training.forward_model).register_comm_hook(reduced, reduce)
        training.take_step(next(training.loader.epoch(0)))
        assert len(reduced) == 1, mode
    assert compiled == [{"mode": "default", "dynamic": False}]


def _loader() -> SampleLoader:
    pixels = TensorImages(torch.arange(48 * 16).view(48, 1, 4, 4).to(torch.uint8))
    samples = Samples(inputs=pixels, labels=torch.arange(48) % 3, truth=None, ids=[str(i) for i in range(48)])
    part = distributed.rank(), distributed.world_size()
    return SampleLoader(samples, batch_size=24, seed=0, device=torch.device("cpu"), part=part)


def test_a_compiled_network_reduces_once_for_all_micro_batches(tmp_path: Path) -> None:
    in_processes(2, _reductions_of_a_compiled_step, tmp_path)
