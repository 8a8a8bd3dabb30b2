"""Targets as the posterior given prediction and label, against the formulas in numpy and against forward correction."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from selfadapt.core.errors import UserError
from selfadapt.data.batch import Batch
from selfadapt.objectives.method import Task
from selfadapt.objectives.objective import Metrics, Progress
from selfadapt.objectives.posterior_targets import PosteriorTargets, posterior_targets
from selfadapt.objectives.start_epoch import CONFIDENCE, CONFIDENT_AGREEMENT
from selfadapt.targets.store import Storage


@pytest.mark.parametrize("reweight", [True, False])
def test_four_epochs_equal_the_formulas(reweight: bool) -> None:
    """Running means from the first epoch on, labels before E_s, then the posterior by the epoch before."""
    samples, classes, start, alpha = 40, 5, 2, 0.6
    generator = np.random.default_rng(0)
    labels = generator.integers(0, classes, samples)
    objective = PosteriorTargets(start_epoch=start, momentum=alpha, reweight=reweight)
    store = objective.initial_targets(torch.from_numpy(labels), classes, Storage())
    means, accuracy, history = np.zeros((samples, classes)), 0.0, list[Metrics]()
    for epoch in range(4):
        logits = 3 * generator.standard_normal((samples, classes)) + 4 * np.eye(classes)[labels] * (epoch > 1)
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        means = p if epoch == 0 else alpha * means + (1 - alpha) * p
        targets = np.eye(classes)[labels]
        if epoch >= start:
            likelihood = np.where(np.eye(classes)[labels] == 1, accuracy, (1 - accuracy) / (classes - 1))
            targets = means * likelihood / (means * likelihood).sum(1, keepdims=True)
        weights = targets.max(1) if reweight else np.ones(samples)
        expected = -(weights * (targets * np.log(p)).sum(1)).sum() / weights.sum()

        batch = Batch(torch.from_numpy(logits).float(), torch.from_numpy(labels), torch.arange(samples))
        loss = objective.loss(nn.Identity(), batch, store, Progress(epoch, epoch / 4, 4, history))
        assert loss.mean.item() == pytest.approx(expected, rel=1e-5)
        assert store is not None
        np.testing.assert_allclose(store.read(torch.arange(samples)).numpy(), means, atol=1e-6)
        history.append({name: values.mean().item() for name, values in loss.measured.items()})
        confidence = means.max(1) ** 6
        accuracy = (confidence * (means.argmax(1) == labels)).sum() / confidence.sum()
        assert history[-1][CONFIDENT_AGREEMENT] / history[-1][CONFIDENCE] == pytest.approx(accuracy, rel=1e-5)
        accuracy = min(max(accuracy, 1 / classes), 1 - 1e-4)


def test_with_predictions_alone_the_gradient_is_that_of_forward_correction() -> None:
    torch.manual_seed(0)
    logits = torch.randn(12, 4, dtype=torch.float64, requires_grad=True)
    labels, accuracy = torch.arange(12) % 4, 0.7
    V = torch.full((4, 4), 0.1, dtype=torch.float64).fill_diagonal_(accuracy)
    forward = -(logits.softmax(1) @ V).gather(1, labels.unsqueeze(1)).log().mean()
    (expected,) = torch.autograd.grad(forward, logits)
    targets = posterior_targets(logits.detach().softmax(1), labels, accuracy)
    (found,) = torch.autograd.grad(cross_entropy(logits, targets), logits)
    torch.testing.assert_close(found, expected)


@settings(max_examples=50)
@given(accuracy=st.floats(0, 1), classes=st.integers(2, 12), seed=st.integers(0, 99))
def test_targets_are_distributions_that_lean_to_the_label(accuracy: float, classes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    means = (20 * torch.randn(16, classes, generator=generator)).softmax(1)  # some of them zero
    labels = torch.randint(classes, (16,), generator=generator)
    targets = posterior_targets(means, labels, accuracy)
    torch.testing.assert_close(targets.sum(1), torch.ones(16))
    own = labels.unsqueeze(1)
    assert (targets.gather(1, own) >= means.gather(1, own) - 1e-6).all()


def test_labels_that_tell_nothing_leave_the_mean() -> None:
    means = torch.tensor([[0.7, 0.2, 0.1]])
    torch.testing.assert_close(posterior_targets(means, torch.tensor([2]), 1 / 3), means)


def test_the_start_is_a_share_of_the_epochs() -> None:
    task = Task(num_classes=3, num_samples=9, data="", epochs=20, seed=0)
    assert PosteriorTargets().suited(task).start_epoch == 3
    assert PosteriorTargets(start_epoch=5).suited(task).started((), 20) == 5
    with pytest.raises(UserError, match="give --epochs 2 or more"):
        PosteriorTargets().suited(replace(task, epochs=1))
    with pytest.raises(UserError, match="must be less than"):
        PosteriorTargets(start_epoch=20).suited(task)
