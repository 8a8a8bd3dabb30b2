"""The loss without labels against the formula written out in numpy, the program's loop, and its own resumed state."""

from typing import Any

import numpy as np
import pytest
import torch

from selfadapt import SelfSupervisedLoss
from selfadapt.objectives.pretraining.encoders import Ramp

Array = Any


def _unit(rows: Array) -> Array:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("views", [1, 2])
def test_targets_and_loss_are_those_of_the_formula(views: int) -> None:
    epochs, momentum = 3, (0.5, 0.8)
    criterion = SelfSupervisedLoss(12, epochs=epochs, dimensions=5, momentum=momentum, seed=3)
    rows = criterion.targets.read(torch.arange(12)).double().numpy()
    generator = torch.Generator().manual_seed(0)
    for epoch in range(epochs):
        for step, index in enumerate(torch.randperm(12, generator=generator).split(4)):
            predicted = torch.randn(views, 4, 5, generator=generator).requires_grad_()
            projected = torch.randn(views, 4, 5, generator=generator)
            alpha = Ramp(*momentum).at((epoch + step / 3) / epochs)
            z = np.mean([_unit(view) for view in projected.double().numpy()], axis=0)
            rows[index] = alpha * _unit(rows[index]) + (1 - alpha) * z
            distances = [((_unit(p) - _unit(rows[index])) ** 2).sum(1) for p in predicted.detach().double().numpy()]
            if views == 1:
                loss = criterion(predicted[0], index, projected[0])
            else:
                loss = criterion(list(predicted), index, list(projected))
            assert loss.item() == pytest.approx(np.mean(distances), rel=1e-5)
            loss.backward()
            assert predicted.grad is not None
        criterion.end_epoch()
    np.testing.assert_allclose(criterion.targets.read(torch.arange(12)).numpy(), rows, rtol=1e-4, atol=1e-6)


def test_without_a_momentum_encoder_targets_move_towards_the_predictions() -> None:
    one, other = (SelfSupervisedLoss(4, epochs=2, dimensions=3) for _ in range(2))
    predicted = torch.randn(4, 3, requires_grad=True)
    assert one(predicted, range(4)) == other(predicted, range(4), predicted.detach())
    assert torch.equal(one.targets.read(torch.arange(4)), other.targets.read(torch.arange(4)))


def test_a_loaded_state_resumes_to_the_same_bits() -> None:
    losses = [SelfSupervisedLoss(8, epochs=4, dimensions=3, momentum=(0.5, 0.9)) for _ in range(3)]
    undisturbed, before, after = losses
    predicted = torch.randn(4, 8, 3)

    def steps(criterion: SelfSupervisedLoss, epochs: range) -> None:
        for epoch in epochs:
            for index in torch.arange(8).split(4):
                criterion(predicted[epoch, index].requires_grad_(), index)
            criterion.end_epoch()

    steps(undisturbed, range(4))
    steps(before, range(2))
    after.load_state_dict(before.state_dict())
    steps(after, range(2, 4))
    assert torch.equal(after.targets.read(torch.arange(8)), undisturbed.targets.read(torch.arange(8)))
    with pytest.raises(ValueError, match="other values of epochs, seed"):
        SelfSupervisedLoss(8, epochs=5, dimensions=3, momentum=(0.5, 0.9), seed=1).load_state_dict(before.state_dict())


def test_mistakes() -> None:
    criterion = SelfSupervisedLoss(4, epochs=2, dimensions=3)
    fine = torch.zeros(2, 3, requires_grad=True)
    for predicted, projected, message in (
        (torch.zeros(2, 4, requires_grad=True), None, r"predictions must be \(2, 3\)"),
        (fine, torch.zeros(2, 4), "a prediction and a projection of one shape"),
        ([fine, fine], [fine], "a prediction and a projection of one shape"),
        (torch.zeros(2, 3), None, "the predictions do not require a gradient"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=message):
            criterion(predicted, [0, 1], projected)
    with pytest.raises(ValueError, match="num_samples must be at least 1"):
        SelfSupervisedLoss(0, epochs=2)
    with pytest.raises(ValueError, match="momentum must be within"):
        SelfSupervisedLoss(4, epochs=2, momentum=(0.5, 1.5))
    assert repr(criterion) == (
        "SelfSupervisedLoss(4 × 3 targets, epochs=2, momentum=0.7, seed=0; epoch 0: the targets move with momentum 0.7)"
    )
