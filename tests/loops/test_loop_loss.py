"""What the losses of your own loop share: micro-batches, models sharded over processes, and what they print."""

import copy
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from distributed.group import in_processes
from selfadapt import SelfAdaptiveLoss
from selfadapt.core import distributed

INPUTS = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
SAMPLES = torch.arange(40)
LABELS = SAMPLES % 4


def test_gradient_accumulation() -> None:
    """Four micro-batches move the targets as one batch does; their gradients add up to that of the mean of the losses.

    The oracle writes out the loss of each micro-batch in numpy and takes its slope by differences.
    """
    whole, accumulated = (SelfAdaptiveLoss(LABELS, epochs=2, start_epoch=0, momentum=0.6) for _ in range(2))
    weight = torch.randn(4, 6, generator=torch.Generator().manual_seed(1)).requires_grad_()
    whole(INPUTS @ weight.T, SAMPLES)
    for index in SAMPLES.split(10):
        (accumulated(INPUTS[index] @ weight.T, index) / 4).backward()
    torch.testing.assert_close(accumulated.targets.read(SAMPLES), whole.targets.read(SAMPLES))
    assert weight.grad is not None
    first = weight.detach().double().numpy()
    targets = 0.6 * np.eye(4)[LABELS] + 0.4 * _softmax(INPUTS.double().numpy() @ first.T)

    def loss(weight_KD: Any) -> float:
        losses = -(targets * np.log(_softmax(INPUTS.double().numpy() @ weight_KD.T))).sum(1)
        weights = targets.max(1)
        parts = np.arange(40).reshape(4, 10)
        return float(np.mean([(weights[part] * losses[part]).sum() / weights[part].sum() for part in parts]))

    for row, column in ((0, 0), (1, 3), (3, 5)):
        step = np.zeros_like(first)
        step[row, column] = 1e-6
        slope = (loss(first + step) - loss(first - step)) / 2e-6
        assert float(weight.grad[row, column]) == pytest.approx(slope, rel=1e-3)


def _softmax(logits: Any) -> Any:
    exponentials = np.exp(logits - logits.max(1, keepdims=True))
    return exponentials / exponentials.sum(1, keepdims=True)


def _trained(folder: Path) -> None:
    """A model whose parameters are sharded over the processes, if there are several."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    if distributed.world_size() > 1:
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    criterion = SelfAdaptiveLoss(LABELS, epochs=4, start_epoch=1)
    for _ in range(4):
        for index in SAMPLES.split(10):
            own = index.tensor_split(distributed.world_size())[distributed.rank()]
            optimizer.zero_grad()
            criterion(model(INPUTS[own]), own).backward()
            optimizer.step()
        criterion.end_epoch()
    weights = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    if distributed.rank() == 0:
        targets = criterion.targets.read(SAMPLES)
        torch.save([targets, *(w.detach() for w in weights)], folder / str(distributed.world_size()))
    distributed.barrier()
    os._exit(0)  # the caches of DTensor hold the group and its threads for ever


@pytest.mark.distributed
def test_a_model_that_is_fully_sharded_trains_as_in_one_process(tmp_path: Path) -> None:
    for count in (1, 2):
        in_processes(count, _trained, tmp_path)
    one, two = (torch.load(tmp_path / str(count), weights_only=True) for count in (1, 2))
    for found, expected in zip(two, one, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_batches_close_the_epoch_after_the_last_one() -> None:
    criterion, other = (SelfAdaptiveLoss(LABELS, epochs=3, start_epoch=0) for _ in range(2))
    logits = torch.randn(40, 4, requires_grad=True)
    for index in criterion.batches(SAMPLES.split(20)):
        assert criterion.epoch == 0
        criterion(logits[index], index)
        other(logits[index], index)
    other.end_epoch()
    assert (criterion.epoch, criterion.seen) == (1, 0)
    assert torch.equal(criterion.targets.read(SAMPLES), other.targets.read(SAMPLES))
    for _ in criterion.batches(SAMPLES.split(20)):
        break  # an epoch that is left early is not closed
    assert criterion.epoch == 1


def test_repr_says_how_far_it_is() -> None:
    criterion = SelfAdaptiveLoss(LABELS, epochs=3, start_epoch=1)
    about = "SelfAdaptiveLoss(40 × 4 targets, epochs=3, start_epoch=1, momentum=0.9, seed=0; epoch"
    assert repr(criterion) == f"{about} 0: the targets start to move from epoch 1 on)"
    criterion(torch.zeros(40, 4, requires_grad=True), SAMPLES)
    criterion.end_epoch()
    assert repr(criterion) == f"{about} 1: the targets move from epoch 1 on)"
    assert "when the targets start to move is not known yet" in repr(SelfAdaptiveLoss(LABELS, epochs=3))


DAMAGE: dict[str, Any] = {
    "about": 7,
    "epoch": -1,
    "history": [{}],
    "moments": {"probe_others": [1.0]},
    "seen": "many",
    "visited": torch.tensor([40]),
    "process": [0],
    "share": torch.full((40,), 2.0),
    "targets": {"rows": torch.full((40, 4), float("nan")), "writes": torch.tensor(3)},
}


@pytest.mark.parametrize("key", DAMAGE)
def test_a_damaged_state_leaves_the_loss_as_it_was(key: str) -> None:
    saved, own = (SelfAdaptiveLoss(LABELS, epochs=3, start_epoch=1) for _ in range(2))
    for criterion, epochs in ((saved, 2), (own, 1)):
        for _ in range(epochs):
            criterion(torch.zeros(40, 4, requires_grad=True), SAMPLES)
            criterion.end_epoch()
    before, state = repr(own.state_dict()), copy.deepcopy(saved.state_dict())
    for damaged in ({**state, key: DAMAGE[key]}, {**state, key: None}):
        with pytest.raises(ValueError, match=r"."):
            own.load_state_dict(damaged)
        assert repr(own.state_dict()) == before
    own.load_state_dict(state)
    assert repr(own.state_dict()) == repr(state)


@pytest.mark.parametrize("start", [0, 2, "auto"])
def test_masked_classes_are_as_if_they_were_not_there(start: int | str) -> None:
    """Two more classes, masked by -inf: losses, gradients and targets are those without them."""
    plain = SelfAdaptiveLoss(LABELS, epochs=3, start_epoch=start)
    masked = SelfAdaptiveLoss(LABELS, epochs=3, start_epoch=start, num_classes=6)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        logits = torch.randn(40, 4, generator=generator).requires_grad_()
        wider = torch.cat([logits.detach(), torch.full((40, 2), -torch.inf)], 1).requires_grad_()
        losses = [criterion(own, SAMPLES) for criterion, own in ((plain, logits), (masked, wider))]
        for loss in losses:
            assert loss.isfinite()
            loss.backward()
        assert logits.grad is not None
        assert wider.grad is not None
        if start != "auto":  # which injects other wrong labels among six classes
            torch.testing.assert_close(losses[1], losses[0])
            torch.testing.assert_close(wider.grad[:, :4], logits.grad)
        assert not wider.grad[:, 4:].any()
        for criterion in (plain, masked):
            criterion.end_epoch()
    if start != "auto":
        rows = masked.targets.read(SAMPLES)
        torch.testing.assert_close(rows[:, :4], plain.targets.read(SAMPLES))
        assert not rows[:, 4:].any()


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        ([0.0, float("nan"), 0.0, 0.0], r"the logits of sample 5 \(row 1 of the batch\) contain NaN"),
        ([0.0, float("inf"), 0.0, 0.0], "contain NaN or"),
        ([-float("inf")] * 4, "no class is left"),
        ([0.0, -float("inf"), 0.0, 0.0], "the target of sample 5 .* gives probability to a class whose logit is -inf"),
    ],
)
@pytest.mark.parametrize("start", [0, 1, "auto"])
def test_logits_that_make_no_loss_are_refused_and_move_no_target(
    start: int | str, logits: list[float], message: str
) -> None:
    criterion = SelfAdaptiveLoss(LABELS, epochs=3, start_epoch=start)
    before = criterion.targets.read(SAMPLES)
    with pytest.raises(ValueError, match=message):
        criterion(torch.tensor([[0.0] * 4, logits], requires_grad=True), [4, 5])
    assert torch.equal(criterion.targets.read(SAMPLES), before)
