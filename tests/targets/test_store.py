"""The target store: updates, validation and storage."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from selfadapt import Storage, TargetStore
from selfadapt.core.errors import NonFinitePrediction, UserError

LABELS = torch.tensor([0, 1, 2, 1, 0])


@pytest.fixture(params=["float32", "float16", "file"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return Storage.parse(request.param, file=tmp_path / "targets.bin")


def _store(momentum: float = 0.9, storage: Storage | None = None) -> TargetStore:
    return TargetStore.from_labels(LABELS, 3, momentum, storage)


def _all(store: TargetStore) -> Tensor:
    return store.read(torch.arange(len(store)))


def test_starts_as_the_labels(storage: Storage) -> None:
    assert torch.equal(_all(_store(storage=storage)), torch.eye(3)[LABELS])


def test_moves_only_the_rows_of_the_batch(storage: Storage) -> None:
    store = _store(storage=storage)
    index, prediction = torch.tensor([4, 1]), torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.1, 0.3]])
    rows = store.update(index, prediction)
    expected = 0.9 * np.eye(3)[[0, 1]] + 0.1 * prediction.double().numpy()
    np.testing.assert_allclose(rows.numpy(), expected, atol=1e-6 if storage.dtype == torch.float32 else 1e-3)
    assert torch.equal(_all(store)[index], rows)
    assert torch.equal(_all(store)[[0, 2, 3]], torch.eye(3)[LABELS][[0, 2, 3]])


def test_returns_no_gradient() -> None:
    prediction = torch.full((1, 3), 1 / 3, requires_grad=True)
    assert not _store().update(torch.tensor([0]), prediction).requires_grad


def test_momentum_of_a_call_stands_in_for_the_store_s() -> None:
    rows = _store(momentum=0.9).update(torch.tensor([0]), torch.tensor([[0.0, 1.0, 0.0]]), momentum=0.25)
    torch.testing.assert_close(rows, torch.tensor([[0.25, 0.75, 0.0]]))


def test_directions_are_normalised_before_they_move() -> None:
    store = TargetStore.gaussian(4, 8, momentum=0.7, seed=3)
    before = _all(store).double().numpy()
    z = torch.randn(2, 8)
    rows = store.update(torch.tensor([3, 0]), z)
    old, new = before[[3, 0]], z.double().numpy()
    unit = [value / np.linalg.norm(value, axis=1, keepdims=True) for value in (old, new)]
    np.testing.assert_allclose(rows.numpy(), 0.7 * unit[0] + 0.3 * unit[1], atol=1e-6)


def test_gaussian_rows_are_standard_normal_and_seeded() -> None:
    rows = _all(TargetStore.gaussian(2000, 64, seed=1))
    assert abs(rows.mean()) < 0.01
    assert abs(rows.std() - 1) < 0.01
    assert torch.equal(rows, _all(TargetStore.gaussian(2000, 64, seed=1)))
    assert not torch.equal(rows, _all(TargetStore.gaussian(2000, 64, seed=2)))


FINE = torch.full((2, 3), 1 / 3)
BAD_CALLS = {
    "index 5 is outside 0..4": (torch.tensor([0, 5]), FINE),
    "index -1 is outside": (torch.tensor([0, -1]), FINE),
    "sample 3 occurs more than once": (torch.tensor([3, 3]), FINE),
    "index must be a vector of integers": (torch.tensor([0.0, 1.0]), FINE),
    r"must be \(2, 3\), one row of 3": (torch.tensor([0, 1]), torch.full((2, 4), 0.25)),
    "sample 1 .row 1 of the batch. contains NaN": (
        torch.tensor([0, 1]),
        torch.tensor([[1.0, 0, 0], [torch.nan, 0, 1]]),
    ),
    "sample 0 .row 0 of the batch. contains NaN or inf": (
        torch.tensor([0, 1]),
        torch.tensor([[torch.inf, 0, 0], [0, 0, 1]]),
    ),
    "sample 4 .row 1 of the batch. has a negative": (torch.tensor([0, 4]), torch.tensor([[1.0, 0, 0], [-0.5, 1, 0.5]])),
    "sample 2 .row 0 of the batch. does not sum to 1": (torch.tensor([2, 4]), torch.tensor([[2.0, 0, 0], [0, 1, 0]])),
    # Over the wrong axis, with as many samples as classes: the sum of all is right.
    "sample 4 .row 0 of the batch. does not sum to 1": (
        torch.tensor([4, 0, 1]),
        torch.tensor([[3.0, 3, 3], [0, 0, 0], [0, 0, 0]]).softmax(0),
    ),
}


@pytest.mark.parametrize("message", BAD_CALLS)
def test_refuses_bad_input_and_writes_nothing(message: str, storage: Storage) -> None:
    store = _store(storage=storage)
    before = _all(store).clone()
    with pytest.raises(ValueError, match=message):
        store.update(*BAD_CALLS[message])
    assert torch.equal(_all(store), before)


def test_non_finite_prediction_names_its_samples() -> None:
    with pytest.raises(NonFinitePrediction) as caught:
        _store().update(torch.tensor([3, 0]), torch.tensor([[torch.nan] * 3, [1.0, 0, 0]]))
    assert caught.value.samples == [3]


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        (torch.tensor([0, 3]), 3, "label 3 of sample 1 is outside 0..2"),
        (torch.tensor([-1, 0]), 3, "label -1 of sample 0"),
        (torch.tensor([0.5]), 3, "a vector of integers"),
        (torch.tensor([[0]]), 3, "a vector of integers"),
        (np.ma.array([0, 1, 2], mask=[False, True, False]), 3, "labels have masked values"),
        (None, 3, "a vector of integers"),
        (torch.tensor([0, 1]), 0, "num_classes must be a whole number of at least 1, not 0"),
        (torch.tensor([0, 1]), 2.5, "num_classes must be a whole number of at least 1, not 2.5"),
    ],
)
def test_refuses_bad_labels(labels: Any, classes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TargetStore.from_labels(labels, classes)


def test_an_index_may_be_a_list() -> None:
    one, two = _store(), _store()
    prediction = torch.tensor([[0.2, 0.3, 0.5], [0.1, 0.8, 0.1]])
    assert torch.equal(one.update([3, 0], prediction), two.update(torch.tensor([3, 0]), prediction))
    assert torch.equal(one.read([0, 3]), two.read(torch.tensor([0, 3])))


@pytest.mark.parametrize("momentum", [-0.1, 1.1, float("nan")])
def test_refuses_bad_momentum(momentum: float) -> None:
    with pytest.raises(ValueError, match="momentum must be within"):
        _store(momentum)


def test_an_empty_batch_moves_nothing() -> None:
    store = _store()
    assert store.update(torch.empty(0, dtype=torch.int64), torch.empty(0, 3)).shape == (0, 3)
    assert torch.equal(_all(store), torch.eye(3)[LABELS])


@settings(max_examples=50)
@given(
    seed=st.integers(0, 10_000),
    momentum=st.floats(0, 1),
    classes=st.integers(1, 20),
    half=st.booleans(),
)
def test_rows_stay_distributions(seed: int, momentum: float, classes: int, half: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (17,), generator=generator)
    storage = Storage(dtype=torch.float16 if half else torch.float32)
    store = TargetStore.from_labels(labels, classes, momentum, storage)
    for _ in range(10):
        index = torch.randperm(17, generator=generator)[:6]
        store.update(index, (5 * torch.randn(6, classes, generator=generator)).softmax(1))
    rows = _all(store)
    assert (rows >= 0).all()
    torch.testing.assert_close(rows.sum(1), torch.ones(17), atol=2e-2 if half else 1e-5, rtol=0)


def test_half_precision_does_not_freeze() -> None:
    """At momentum 0.99 rounding to nearest stops at a distance of up to 0.024; here the mean must arrive."""
    samples, probability = 512, torch.tensor([0.985, 0.015])
    store = TargetStore.from_labels(torch.zeros(samples, dtype=torch.int64), 2, 0.99, Storage(dtype=torch.float16))
    exact, nearest = torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0], dtype=torch.float16)
    for _ in range(500):
        store.update(torch.arange(samples), probability.expand(samples, 2))
        exact = torch.lerp(probability, exact, 0.99)
        nearest = torch.lerp(probability, nearest.float(), 0.99).half()
    assert abs(nearest[0].float() - exact[0]) > 0.005, "the case must be one in which plain rounding freezes"
    assert abs(_all(store)[:, 0].mean() - exact[0]) < 5e-4
    assert (_all(store)[:, 0] - exact[0]).abs().max() < 0.01


def test_state_comes_back_to_the_same_bits(storage: Storage) -> None:
    def move(store: TargetStore, steps: range) -> None:
        for step in steps:
            generator = torch.Generator().manual_seed(step)
            store.update(torch.tensor([0, 2, 4]), torch.randn(3, 3, generator=generator).softmax(1))

    whole = _store(0.95, storage)
    move(whole, range(6))
    expected = _all(whole).clone()
    half = _store(0.95, storage)
    move(half, range(3))
    state = {name: tensor.clone() for name, tensor in half.state_dict().items()}
    resumed = _store(0.95, storage)
    resumed.load_state_dict(state)
    move(resumed, range(3, 6))
    assert torch.equal(_all(resumed), expected)


def test_state_of_another_shape_is_refused() -> None:
    other = TargetStore.from_labels(torch.tensor([0, 1]), 3)
    with pytest.raises(ValueError, match=r"saved targets are \(2, 3\)"):
        _store().load_state_dict(other.state_dict())


def test_file_holds_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.bin"
    store = _store(storage=Storage(file=path))
    store.update(torch.tensor([1]), torch.tensor([[1.0, 0.0, 0.0]]))
    on_disk = np.fromfile(path, dtype=np.float32).reshape(5, 3)
    np.testing.assert_array_equal(on_disk, _all(store).numpy())


def test_a_file_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot reserve 60 bytes for the targets in"):
        _store(storage=Storage(file=tmp_path / "missing" / "rows.bin"))


@pytest.mark.parametrize("kind", ["distribution", "direction"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_never_reaches_a_row(kind: str, bad: float) -> None:
    store = _store() if kind == "distribution" else TargetStore.gaussian(5, 3)
    before = _all(store)
    scores = torch.tensor([[1.0, 2.0, 3.0], [0.5, bad, 1.0]])
    prediction = scores.softmax(1) if kind == "distribution" else torch.nn.functional.normalize(scores, dim=1)
    with pytest.raises(NonFinitePrediction) as caught:
        store.move(torch.tensor([1, 3]), prediction)
    assert caught.value.samples == [3]
    assert torch.equal(_all(store), before)


@pytest.mark.parametrize("other", [{"file": Path("targets.bin")}, {"dtype": torch.float16}])
def test_one_format_at_a_time(other: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="top_k keeps rows in memory and has a fixed format"):
        Storage(top_k=3, **other)
