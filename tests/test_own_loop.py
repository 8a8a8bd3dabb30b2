"""One object in a loop of one's own does what the program's loop does, also resumed and in two processes."""

import io
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from distributed.group import in_processes
from networks import small_training
from selfadapt import SelfAdaptiveLoss, Storage
from selfadapt.core import distributed
from selfadapt.data.dataset import Samples
from selfadapt.data.images.storage import TensorImages
from selfadapt.engine.fit import Training, fit
from selfadapt.engine.optim import learning_rate
from selfadapt.objectives.noisy_labels import SelfAdaptive
from selfadapt.objectives.start_epoch import AutoStart

EPOCHS, SAMPLES = 8, torch.arange(480)


def _noisy() -> Samples:
    """480 images in three classes; a fifth of the labels are wrong."""
    generator = torch.Generator().manual_seed(0)
    truth = SAMPLES % 3
    noise = torch.randint(0, 60, (480, 1, 4, 4), generator=generator)
    images = (truth.view(-1, 1, 1, 1) * 90 + noise).to(torch.uint8)
    wrong = torch.rand(480, generator=generator) < 0.2
    labels = torch.where(wrong, (truth + 1) % 3, truth)
    return Samples(inputs=TensorImages(images), labels=labels, truth=truth, ids=[str(i) for i in range(480)])


def _training(method: SelfAdaptive | None = None) -> Training:
    """The program's, of which a loop of one's own takes the network, the optimiser and the batches."""
    return small_training(method or SelfAdaptive(), _noisy(), EPOCHS)


def _loop(training: Training, criterion: SelfAdaptiveLoss, first: int = 0, last: int = EPOCHS) -> None:
    for epoch in range(first, last):
        _steps(training, criterion, epoch)
        criterion.end_epoch()


def _steps(
    training: Training, criterion: SelfAdaptiveLoss, epoch: int, first: int = 0, last: int | None = None
) -> None:
    steps = training.loader.steps_per_epoch
    for step, batch in islice(enumerate(training.loader.epoch(epoch)), first, last):
        for group in training.optimizer.param_groups:
            group["lr"] = learning_rate(training.settings.optimizer, epoch + step / steps, EPOCHS)
        training.optimizer.zero_grad()
        criterion(training.model(batch.input), batch.index).backward()
        training.optimizer.step()


@pytest.mark.parametrize("start", [2, "auto"])
def test_the_same_training_as_the_programs(start: int | str) -> None:
    method = SelfAdaptive(start_epoch=start if isinstance(start, int) else AutoStart())
    reference, own = _training(method), _training(method)
    fit(reference)
    criterion = SelfAdaptiveLoss(_noisy().labels, epochs=EPOCHS, start_epoch=start)
    _loop(own, criterion)
    assert criterion.started == method.started(reference.history, EPOCHS)
    assert reference.targets is not None
    _assert_close(criterion.targets.read(SAMPLES), reference.targets.read(SAMPLES))
    for name, tensor in reference.model.state_dict().items():
        _assert_close(own.model.state_dict()[name], tensor)


def test_most_suspicious_are_the_wrong_labels() -> None:
    samples = _noisy()
    criterion = SelfAdaptiveLoss(samples.labels, epochs=EPOCHS)
    _loop(_training(), criterion)
    report = criterion.label_errors()
    assert samples.truth is not None
    wrong_N = samples.labels != samples.truth
    assert wrong_N[report.ranked_indices[: int(wrong_N.sum())]].float().mean() > 0.95
    assert (report.suggested_labels == samples.truth.numpy()).mean() > 0.98
    assert report.is_error[report.ranked_indices].tolist() == sorted(report.is_error.tolist(), reverse=True)
    assert "labels are likely errors" in str(report.summary)


def test_a_loaded_state_goes_on_as_if_nothing_had_happened() -> None:
    whole, stopped = _training(), _training()
    undisturbed, before = (SelfAdaptiveLoss(_noisy().labels, epochs=EPOCHS) for _ in range(2))
    _loop(whole, undisturbed)
    _loop(stopped, before, last=4)
    after = SelfAdaptiveLoss(_noisy().labels, epochs=EPOCHS)
    after.load_state_dict(_saved_and_loaded(before))
    _loop(stopped, after, first=4)
    _assert_same(after, undisturbed)


@pytest.mark.parametrize(("epoch", "steps"), [(0, 12), (5, 12), (5, 30)])
def test_a_state_of_the_middle_of_an_epoch_goes_on_too(epoch: int, steps: int) -> None:
    """Also after its last batch, before the epoch is closed."""
    whole, stopped = _training(), _training()
    undisturbed, before, after = (SelfAdaptiveLoss(_noisy().labels, epochs=EPOCHS) for _ in range(3))
    assert steps <= whole.loader.steps_per_epoch == 30
    _loop(whole, undisturbed)
    _loop(stopped, before, last=epoch)
    _steps(stopped, before, epoch, last=steps)
    after.load_state_dict(_saved_and_loaded(before))
    _steps(stopped, after, epoch, first=steps)
    after.end_epoch()
    _loop(stopped, after, first=epoch + 1)
    _assert_same(after, undisturbed)


def _saved_and_loaded(criterion: SelfAdaptiveLoss) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(criterion.state_dict(), file)
    file.seek(0)
    return cast(dict[str, Any], torch.load(file, weights_only=True))


def _assert_same(found: SelfAdaptiveLoss, expected: SelfAdaptiveLoss) -> None:
    assert torch.equal(found.targets.read(SAMPLES), expected.targets.read(SAMPLES))
    assert found.label_errors().p_wrong.tolist() == expected.label_errors().p_wrong.tolist()
    assert (found.started, found.history) == (expected.started, expected.history)


def _own_steps(criterion: SelfAdaptiveLoss, steps: range) -> None:
    """Steps over the samples of this process, with predictions that each sample has of its own."""
    logits_NK = torch.randn(480, 3, generator=torch.Generator().manual_seed(0))
    batches = SAMPLES[distributed.rank() :: distributed.world_size()].split(60)
    for index_B in batches[steps.start : steps.stop]:
        criterion(logits_NK[index_B].requires_grad_(), index_B)


def _states_of_two(folder: Path, sharded: bool) -> None:
    made = partial(SelfAdaptiveLoss, _noisy().labels, epochs=4, start_epoch=1, storage=Storage(sharded=sharded))
    whole, before, after = made(), made(), made()
    for criterion in (whole, before):
        _own_steps(criterion, range(4))
        criterion.end_epoch()
    closed = cast(list[dict[str, Any]], distributed.all_gather_objects(before.state_dict()))
    if sharded and distributed.rank():
        with pytest.raises(ValueError, match=r"of rank 0 of 2 processes, but this is rank 1 of 2; .* file for each"):
            after.load_state_dict(closed[0])
    after.load_state_dict(closed[distributed.rank() if sharded else 0])
    _own_steps(whole, range(4))
    _own_steps(after, range(3))
    middle = cast(list[dict[str, Any]], distributed.all_gather_objects(after.state_dict()))
    own, goes_on = distributed.rank(), made()
    with pytest.raises(ValueError, match=f"within an epoch by rank {1 - own} of 2 .* save after end_epoch"):
        goes_on.load_state_dict(middle[1 - own])
    goes_on.load_state_dict(middle[own])
    _own_steps(goes_on, range(3, 4))
    whole.end_epoch()
    goes_on.end_epoch()
    _assert_same(goes_on, whole)


@pytest.mark.distributed
@pytest.mark.parametrize("sharded", [False, True])
def test_states_of_two_processes(sharded: bool, tmp_path: Path) -> None:
    """One will do for both after an epoch if both keep all targets; else each has its own and refuses the other's."""
    in_processes(2, _states_of_two, tmp_path, sharded)


def _halves(folder: Path, start: int | str) -> None:
    """Each process gets the half of each batch that is its own."""
    torch.manual_seed(0)
    samples, network = _noisy(), nn.Linear(16, 3)
    model = DistributedDataParallel(network) if distributed.world_size() > 1 else network
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    criterion = SelfAdaptiveLoss(samples.labels, epochs=EPOCHS, start_epoch=start)
    for _ in range(EPOCHS):
        for index in SAMPLES.split(60):
            own = index.tensor_split(distributed.world_size())[distributed.rank()]
            images = samples.inputs.read(own).flatten(1) / 255
            optimizer.zero_grad()
            criterion(model(images), own).backward()
            optimizer.step()
        criterion.end_epoch()
    if distributed.rank() == 0:
        result = {"weight": network.weight.detach(), "targets": criterion.targets.read(SAMPLES)}
        torch.save(result, folder / f"{start}-{distributed.world_size()}.pt")


@pytest.mark.distributed
@pytest.mark.parametrize("start", [2, "auto"])
def test_two_processes_are_as_one(start: int | str, tmp_path: Path) -> None:
    for count in (1, 2):
        in_processes(count, _halves, tmp_path, start)
    one, two = (torch.load(tmp_path / f"{start}-{count}.pt", weights_only=True) for count in (1, 2))
    for name, tensor in one.items():
        _assert_close(two[name], tensor)


def test_mistakes() -> None:
    labels = torch.tensor([0, 1, 2, 0])
    logits = torch.zeros(2, 3, requires_grad=True)
    criterion = SelfAdaptiveLoss(labels, epochs=3, start_epoch=1)
    index = torch.tensor([0, 3])
    calls: tuple[tuple[Any, Any, str], ...] = (
        (logits.detach(), index, "in training steps only"),
        (logits.detach().numpy(), index, "in training steps only"),
        (logits[:, :2], index, r"logits must be \(2, 3\)"),
        (logits, torch.tensor([0, 4]), r"index 4 is outside 0\.\.3"),
        (logits, torch.tensor([True, False]), "index must be a vector of integers"),
        (logits, torch.tensor([1, 1]), "more than once"),
    )
    for given, places, message in calls:
        with pytest.raises((ValueError, RuntimeError), match=message):
            criterion(given, places)
    with pytest.raises(ValueError, match="the batch is empty"):
        criterion(logits[:0], torch.zeros(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="index must be a vector of integers"):
        criterion(logits, [0.5, 1.0])
    for settings, message in (
        ({"epochs": 0}, "epochs must be a whole number of at least 1"),
        ({"epochs": 2.5}, "epochs must be a whole number of at least 1, not 2.5"),
        ({"epochs": 3, "start_epoch": 3}, 'must be "auto" or a number from 0 to 2, not 3'),
        ({"epochs": 3, "start_epoch": "soon"}, "not 'soon'"),
        ({"epochs": 3, "momentum": 2.0}, "momentum must be within"),
        ({"epochs": 3, "num_classes": 2}, "label 2 of sample 2 is outside"),
    ):
        with pytest.raises(ValueError, match=message):
            SelfAdaptiveLoss(labels, **settings)
    for bad, message in (
        ([], "labels are empty"),
        ([0.5, 1.0], "integers"),
        ([[0, 1]], "must be a vector"),
        (np.ma.array([0, 1], mask=[False, True]), "labels have masked values"),
    ):
        with pytest.raises(ValueError, match=message):
            SelfAdaptiveLoss(bad, epochs=3)


@pytest.mark.parametrize("as_given", [list, np.uint16, torch.tensor, lambda own: pd.Series(own, index=[7, 8, 9, 10])])
def test_labels_and_index_of_any_kind(as_given: Callable[[list[int]], Any]) -> None:
    settings: dict[str, Any] = {"epochs": np.int64(3), "start_epoch": np.int64(0), "momentum": 0.5}
    criterion = SelfAdaptiveLoss(as_given([0, 1, 2, 0]), **settings)
    logits = torch.zeros(2, 3, requires_grad=True)
    assert criterion(logits, np.array([3, 1])).item() == pytest.approx(np.log(3))
    np.testing.assert_allclose(criterion.targets.read(torch.tensor([3]))[0], [2 / 3, 1 / 6, 1 / 6], rtol=1e-5)


def test_nothing_is_said_of_labels_before_there_is_evidence() -> None:
    criterion = SelfAdaptiveLoss([0, 1, 2, 0, 1, 2], epochs=4, start_epoch=1, momentum=0.5)
    logits = torch.tensor([[9.0, 0, 0], [9.0, 0, 0], [0, 0, 9.0]], requires_grad=True)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="updates start after 1"):
            criterion.label_errors()
        criterion(logits, torch.arange(3))
        if criterion.epoch == 0:
            criterion.end_epoch()
    criterion.end_epoch()
    report = criterion.label_errors()
    assert report.suggested_labels.tolist() == [0, 0, 2, 0, 1, 2]
    assert report.ranked_indices.tolist()[0] == 1
    assert report.p_wrong.tolist()[3:] == [0.5] * 3  # they were never seen
    assert report.reason.tolist() == ["", "prediction", "", "", "", ""]


@pytest.mark.parametrize("start", [2, "auto"])
def test_samples_that_are_left_out_are_not_the_most_suspicious(start: int | str) -> None:
    """Some are never seen, some not since the targets move, some not in the epoch in which they begin to."""
    samples = _noisy()
    assert samples.truth is not None
    training = _training()
    criterion = SelfAdaptiveLoss(samples.truth, epochs=EPOCHS, start_epoch=start)
    for epoch in range(EPOCHS):
        late = criterion.started is not None
        for batch in training.loader.epoch(epoch):
            first = epoch == criterion.started
            seen_B = (batch.index >= (40 if late else 20)) & ~(first & (batch.index < 60))
            training.optimizer.zero_grad()
            criterion(training.model(batch.input[seen_B]), batch.index[seen_B]).backward()
            training.optimizer.step()
        criterion.end_epoch()
    report = criterion.label_errors()
    assert report.p_wrong[:20].tolist() == [0.5] * 20
    assert (report.suggested_labels == samples.truth.numpy()).mean() > 0.98
    assert (report.p_wrong[20:] < 0.5).mean() > 0.98 or start == 2  # a fixed start learns nothing before


def test_a_state_of_another_training_is_refused_whole() -> None:
    labels = [0, 1, 2, 0]
    state = SelfAdaptiveLoss(labels, epochs=4).state_dict()
    for other, message in (
        (SelfAdaptiveLoss([0, 1, 2, 1], epochs=4), "other values of labels"),
        (SelfAdaptiveLoss(labels, epochs=5), "other values of epochs"),
        (SelfAdaptiveLoss(labels, epochs=4, start_epoch=2), "other values of start_epoch"),
        (SelfAdaptiveLoss(labels, epochs=4, seed=1), "other values of seed"),
        (SelfAdaptiveLoss(labels, epochs=4, momentum=0.1), "other values of momentum"),
    ):
        with pytest.raises(ValueError, match=message):
            other.load_state_dict(state)
    criterion = SelfAdaptiveLoss(labels, epochs=4)
    criterion.epoch = 3
    with pytest.raises(ValueError, match="it lacks seen"):
        criterion.load_state_dict({name: value for name, value in state.items() if name != "seen"})
    assert criterion.epoch == 3


def test_a_forgotten_end_of_the_epoch_is_noticed() -> None:
    criterion = SelfAdaptiveLoss([0, 1, 0, 1], epochs=3)
    logits = torch.zeros(4, 2, requires_grad=True)
    index = torch.arange(4)
    criterion(logits, index)
    criterion(logits, index)
    with pytest.warns(UserWarning, match="call it after each epoch"):
        criterion(logits, index)
    criterion.end_epoch()
    with pytest.raises(RuntimeError, match="twice without a step"):
        criterion.end_epoch()


def _assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
