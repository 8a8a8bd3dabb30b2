"""What the losses of your own loop share: micro-batches, models sharded over processes, and what they print."""

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
