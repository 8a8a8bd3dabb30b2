"""All storage formats of rows satisfy the same contract."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from distributed.group import in_processes
from selfadapt import Storage, TargetStore
from selfadapt.core import distributed
from selfadapt.core.errors import UserError
from selfadapt.targets.rows import PackedRows
from selfadapt.targets.sharded import ShardedRows

N, K = 37, 12
NAMES = ("float32", "float16", "file", "topk:4", "topk:11", "int8")
MOMENTUM = 0.8
# A write that rounds errs by less than a unit: the last place of a float16 below 1, one of int8's 127 steps. An earlier
# error shrinks by the momentum with each write, so they add up to less than unit / (1 - momentum).
UNIT = {"float16": 2**-11, "int8": 1 / 127}


def _labels() -> Tensor:
    return torch.arange(N) % K


def _store(name: str, folder: Path, momentum: float = MOMENTUM) -> TargetStore:
    return TargetStore.from_labels(_labels(), K, momentum, Storage.parse(name, file=folder / "targets.bin"))


def _steps(count: int = 12, batch: int = 10) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randperm(N, generator=generator)[:batch], (3 * torch.randn(batch, K, generator=generator)).softmax(1))
        for _ in range(count)
    ]


def _all(store: TargetStore) -> Tensor:
    return store.read(torch.arange(N))


@pytest.fixture(params=[*NAMES, *(f"sharded:{name}" for name in NAMES)])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_rows_start_as_the_labels(name: str, tmp_path: Path) -> None:
    assert torch.equal(_all(_store(name, tmp_path)), torch.eye(K)[_labels()])


def test_an_update_returns_what_is_kept_and_touches_no_other_row(name: str, tmp_path: Path) -> None:
    store = _store(name, tmp_path)
    for index, prediction in _steps():
        before = _all(store)
        rows = store.update(index, prediction)
        torch.testing.assert_close(store.read(index), rows, rtol=0, atol=1e-6)
        others = torch.ones(N, dtype=torch.bool)
        others[index] = False
        assert torch.equal(_all(store)[others], before[others])


def _by_hand(k: int) -> "np.ndarray[tuple[int, ...], np.dtype[Any]]":
    """The formula in numpy: all but the k largest entries share what these leave."""
    rows: np.ndarray[tuple[int, ...], np.dtype[Any]] = np.eye(K)[_labels().numpy()]
    for index, prediction in _steps():
        for i, p in zip(index.tolist(), prediction.double().numpy(), strict=True):
            row = MOMENTUM * rows[i] + (1 - MOMENTUM) * p
            least = np.argsort(row)[: K - k]
            row[least] = row[least].sum() / max(1, K - k)
            rows[i] = row
    return rows


def test_rows_follow_the_formula(name: str, tmp_path: Path) -> None:
    """And stay distributions."""
    store = _store(name, tmp_path)
    for index, prediction in _steps():
        store.update(index, prediction)
    rows = _all(store)
    plain = name.removeprefix("sharded:")
    expected = _by_hand(int(plain.removeprefix("topk:")) if plain.startswith("topk:") else K)
    assert np.abs(rows.numpy() - expected).max() < max(1e-6, UNIT.get(plain, 0.0) / (1 - MOMENTUM))
    assert (rows >= 0).all()
    assert (rows.sum(1) - 1).abs().max() < (0.05 if plain == "int8" else 5e-3)


def test_rounding_again_changes_nothing(name: str, tmp_path: Path) -> None:
    rows = _store(name, tmp_path).rows
    kept = rows.local if isinstance(rows, ShardedRows) else rows
    assert isinstance(kept, PackedRows)
    index, prediction = _steps(1)[0]
    once = kept.unpack(kept.pack(index, prediction))
    torch.testing.assert_close(kept.unpack(kept.pack(index, once)), once, rtol=0, atol=1e-7)


def test_state_comes_back_and_goes_on_alike(name: str, tmp_path: Path) -> None:
    first = _store(name, tmp_path)
    steps = _steps()
    for index, prediction in steps[:6]:
        first.update(index, prediction)
    state = {key: value.clone() for key, value in first.state_dict().items()}
    (tmp_path / "second").mkdir()
    second = _store(name, tmp_path / "second")
    second.load_state_dict(state)
    for index, prediction in steps[6:]:
        assert torch.equal(first.update(index, prediction), second.update(index, prediction))
    with pytest.raises(ValueError, match="the saved targets are"):
        TargetStore.from_labels(
            _labels()[:9], K, 0.8, Storage.parse(name, file=tmp_path / "third.bin")
        ).load_state_dict(state)


def test_refusals() -> None:
    for text in ("topk:0", "topk:12"):
        with pytest.raises(UserError, match="entries for 12 classes"):
            TargetStore.from_labels(_labels(), K, 0.9, Storage.parse(text))
    for text in ("topk:", "topk:x", "float64", "sharded:", "sharded:sharded:file"):
        with pytest.raises(UserError, match="is not known"):
            Storage.parse(text)
    with pytest.raises(UserError, match="stores probabilities"):
        TargetStore.gaussian(4, 8, storage=Storage.parse("topk:2"))
    with pytest.raises(UserError, match="start at zero"):
        TargetStore.empty(4, 8, storage=Storage.parse("topk:2"))


def test_the_bytes_of_imagenet() -> None:
    """A thousand classes: top-8 takes at most 1/80 of float32."""
    labels = torch.zeros(1000, dtype=torch.int64)
    dense = TargetStore.from_labels(labels, 1000).rows.nbytes
    assert TargetStore.from_labels(labels, 1000, storage=Storage.parse("topk:8")).rows.nbytes * 80 <= dense
    assert TargetStore.from_labels(labels, 1000, storage=Storage.parse("int8")).rows.nbytes < 0.26 * dense
    many = TargetStore.from_labels(labels, 40_000, storage=Storage.parse("topk:8"))
    assert int(many.read(torch.tensor([0])).argmax()) == 0
    row = torch.zeros(1, 40_000)
    row[0, 39_999] = 1
    assert int(many.update(torch.tensor([0]), row, momentum=0.1).argmax()) == 39_999


def test_int8_features_stay_close_to_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    exact = TargetStore.gaussian(20, 256, momentum=0.7)
    small = TargetStore.gaussian(20, 256, momentum=0.7, storage=Storage.parse("int8"))
    index = torch.arange(20)
    for _ in range(200):
        feature = torch.randn(20, 256, generator=generator)
        exact.update(index, feature)
        small.update(index, feature)
    assert (exact.read(index) - small.read(index)).abs().max() < 1e-2


@pytest.mark.parametrize("text", ["float16", "int8"])
def test_slow_targets_do_not_freeze(text: str) -> None:
    """A step far below one unit in the last place, taken often enough, arrives."""
    store = TargetStore.from_labels(torch.zeros(400, dtype=torch.int64), 2, 0.9999, Storage.parse(text))
    index, prediction = torch.arange(400), torch.tensor([[0.5, 0.5]]).repeat(400, 1)
    for _ in range(1000):
        store.update(index, prediction)
    expected = 0.5 + 0.5 * 0.9999**1000
    assert float(store.read(index)[:, 0].mean()) == pytest.approx(expected, abs=0.005)


def _update_in_parts(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        store = _store(name, folder)
        for index, prediction in _steps():
            part = torch.arange(len(index)).tensor_split(distributed.world_size())[distributed.rank()]
            rows = store.update(index[part], prediction[part])
            assert torch.equal(store.read(index[part]), rows) or name.endswith(("int8", "topk:4", "topk:11"))
        rows = _all(store)
        if distributed.rank() == 0:
            torch.save(rows, folder / f"{name}.pt")


@pytest.mark.distributed
@pytest.mark.parametrize("count", [2, 4])
def test_several_processes_keep_the_rows_of_one(count: int, tmp_path: Path) -> None:
    names = (*NAMES, *(f"sharded:{name}" for name in NAMES))
    in_processes(count, _update_in_parts, tmp_path, names)
    (tmp_path / "one").mkdir()
    for name in names:
        store = _store(name.removeprefix("sharded:"), tmp_path / "one")
        for index, prediction in _steps():
            store.update(index, prediction)
        torch.testing.assert_close(torch.load(tmp_path / f"{name}.pt"), _all(store), rtol=0, atol=1e-6)


def _padded(folder: Path) -> None:
    """Sample 3 is in both batches, as a sampler that pads makes it."""
    for name in ("float32", "sharded:float32"):
        store = _store(name, folder, momentum=0.5)
        index = torch.tensor([3, 5]) if distributed.rank() == 0 else torch.tensor([3, 7])
        target = 0 if distributed.rank() == 0 else 1
        store.update(index, torch.eye(K)[[target, target]])
        torch.save(store.read(torch.tensor([3]))[0], folder / f"{name}-{distributed.rank()}.pt")


@pytest.mark.distributed
def test_a_padded_sample_moves_once(tmp_path: Path) -> None:
    in_processes(2, _padded, tmp_path)
    expected = 0.5 * torch.eye(K)[3] + 0.5 * torch.eye(K)[0]
    for name in ("float32", "sharded:float32"):
        for rank in range(2):
            torch.testing.assert_close(torch.load(tmp_path / f"{name}-{rank}.pt"), expected)


def _sharded() -> TargetStore:
    return TargetStore.from_labels(torch.arange(8) % 3, 3, storage=Storage(sharded=True))


def _each_loads_its_own(folder: Path) -> None:
    own, everyone = distributed.rank(), torch.arange(8)
    moved, fresh = _sharded(), _sharded()
    moved.update(everyone[own::2], torch.full((4, 3), 1 / 3))
    expected, before = moved.read(everyone), fresh.read(everyone)
    torch.save(moved.state_dict(), folder / f"state-{own}.pt")
    distributed.barrier()
    with pytest.raises(ValueError, match=f"rows of rank {1 - own} of 2 processes, but this is rank {own} of 2;.*each"):
        fresh.load_state_dict(torch.load(folder / f"state-{1 - own}.pt"))
    assert torch.equal(fresh.read(everyone), before)
    fresh.load_state_dict(torch.load(folder / f"state-{own}.pt"))
    assert torch.equal(fresh.read(everyone), expected)


@pytest.mark.distributed
def test_a_sharded_state_is_of_one_process(tmp_path: Path) -> None:
    """The shares of both have the same shape, so that nothing else tells them apart."""
    in_processes(2, _each_loads_its_own, tmp_path)
    with pytest.raises(
        ValueError, match=r"rank 1 of 2 processes, but this is rank 0 of 1; .* same number of processes"
    ):
        _sharded().load_state_dict(torch.load(tmp_path / "state-1.pt"))
    whole = TargetStore.from_labels(torch.arange(8) % 3, 3)
    whole.update(torch.tensor([5]), torch.full((1, 3), 1 / 3))
    alone = _sharded()
    alone.load_state_dict(whole.state_dict())  # one process keeps all rows, sharded or not
    assert torch.equal(alone.read(torch.arange(8)), whole.read(torch.arange(8)))
