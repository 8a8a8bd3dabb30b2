"""The selective loss as an object does what the program's loop does, also resumed and in two processes."""

import io
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from distributed.group import in_processes
from networks import small_training
from selfadapt import SelectiveLoss
from selfadapt.core import distributed
from selfadapt.data.dataset import Samples
from selfadapt.engine.fit import Training, fit
from selfadapt.engine.optim import learning_rate
from selfadapt.objectives.selective import Selective

EPOCHS = 6


def _loop(training: Training, criterion: SelectiveLoss, epochs: range) -> None:
    steps = training.loader.steps_per_epoch
    for epoch in epochs:
        for step, batch in enumerate(training.loader.epoch(epoch)):
            for group in training.optimizer.param_groups:
                group["lr"] = learning_rate(training.settings.optimizer, epoch + step / steps, EPOCHS)
            training.optimizer.zero_grad()
            criterion(training.model(batch.input), batch.index).backward()
            training.optimizer.step()
        criterion.end_epoch()


@pytest.mark.parametrize("start", [0, 2])
def test_the_same_training_as_the_programs(start: int, tiny_samples: Samples) -> None:
    method = Selective(start_epoch=start, momentum=0.8)
    reference, own = (small_training(method, tiny_samples, EPOCHS) for _ in range(2))
    fit(reference)
    criterion = SelectiveLoss(tiny_samples.labels, epochs=EPOCHS, start_epoch=start, momentum=0.8)
    _loop(own, criterion, range(EPOCHS))
    assert reference.targets is not None
    torch.testing.assert_close(criterion.targets.read(torch.arange(48)), reference.targets.read(torch.arange(48)))
    for name, tensor in reference.model.state_dict().items():
        torch.testing.assert_close(own.model.state_dict()[name], tensor, atol=1e-5, rtol=1e-4)


def test_a_loaded_state_resumes_to_the_same_bits(tiny_samples: Samples) -> None:
    whole, stopped = (small_training(Selective(), tiny_samples, EPOCHS) for _ in range(2))
    undisturbed, before, after = (SelectiveLoss(tiny_samples.labels, epochs=EPOCHS) for _ in range(3))
    _loop(whole, undisturbed, range(EPOCHS))
    _loop(stopped, before, range(3))
    file = io.BytesIO()
    torch.save(before.state_dict(), file)
    file.seek(0)
    after.load_state_dict(torch.load(file, weights_only=True))
    _loop(stopped, after, range(3, EPOCHS))
    assert torch.equal(after.targets.read(torch.arange(48)), undisturbed.targets.read(torch.arange(48)))
    assert after.label_errors().p_wrong.tolist() == undisturbed.label_errors().p_wrong.tolist()
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(stopped.model.state_dict()[name], tensor)


def test_a_sample_whose_label_is_not_believed_teaches_to_abstain() -> None:
    """By hand: -[t log p_label + (1 - t) log p_abstain] with t = 0.5 + 0.5 · 1/2."""
    criterion = SelectiveLoss([0, 1], epochs=1, momentum=0.5)
    outputs = torch.zeros(2, 3, requires_grad=True)
    criterion(outputs, [0, 1]).backward()
    assert outputs.grad is not None
    third = 1 / 3  # of p for each output
    expected = torch.tensor([[third - 0.75, third, third - 0.25], [third, third - 0.75, third - 0.25]]) / 2
    torch.testing.assert_close(outputs.grad, expected)
    sure, unsure = SelectiveLoss.confidence(torch.tensor([[5.0, 0.0, -5.0], [0.0, 0.0, 5.0]]))
    assert sure > unsure


def _halves(folder: Path) -> None:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    inputs, labels = torch.randn(40, 4, generator=generator), torch.arange(40) % 2
    network = nn.Linear(4, 3)
    model = DistributedDataParallel(network) if distributed.world_size() > 1 else network
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    criterion = SelectiveLoss(labels, epochs=3, momentum=0.7)
    for _ in range(3):
        for index in torch.arange(40).split(8):
            own = index.tensor_split(distributed.world_size())[distributed.rank()]
            optimizer.zero_grad()
            criterion(model(inputs[own]), own).backward()
            optimizer.step()
        criterion.end_epoch()
    if distributed.rank() == 0:
        targets = criterion.targets.read(torch.arange(40))
        torch.save([network.weight.detach(), targets], folder / str(distributed.world_size()))


@pytest.mark.distributed
def test_two_processes_are_as_one(tmp_path: Path) -> None:
    for count in (1, 2):
        in_processes(count, _halves, tmp_path)
    for one, two in zip(*(torch.load(tmp_path / str(count), weights_only=True) for count in (1, 2)), strict=True):
        torch.testing.assert_close(two, one)


def test_mistakes() -> None:
    for settings, message in (
        ({"epochs": 0}, "epochs must be a whole number of at least 1"),
        ({"epochs": 3, "start_epoch": 3}, "start_epoch must be from 0 to 2, not 3"),
        ({"epochs": 3, "momentum": 2.0}, "momentum must be within"),
    ):
        with pytest.raises(ValueError, match=message):
            SelectiveLoss([0, 1], **settings)
    with pytest.raises(ValueError, match=r"logits must be \(2, 3\)"):
        SelectiveLoss([0, 1], epochs=3)(torch.zeros(2, 2, requires_grad=True), [0, 1])
