"""Supervised self-adaptive training against the paper, written out independently."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from oracles.softmax_regression import Oracle
from selfadapt import TargetStore, self_adaptive_cross_entropy
from selfadapt.data.batch import Batch
from selfadapt.data.dataset import Samples
from selfadapt.data.loader import SampleLoader
from selfadapt.engine.fit import FitSettings, Training, fit
from selfadapt.engine.optim import OptimizerSettings
from selfadapt.models.backbone import Backbone
from selfadapt.objectives.noisy_labels import NoisyLabels
from selfadapt.objectives.objective import Progress
from selfadapt.objectives.start_epoch import AutoStart
from selfadapt.targets.store import Storage

CPU = torch.device("cpu")


class Pixels(Backbone):
    """The pixels themselves as features."""

    num_features = 16

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)


def _training(
    samples: Samples, objective: NoisyLabels, *, epochs: int = 6, lr: float = 0.5, micro_batches: int = 1
) -> Training:
    torch.manual_seed(1)
    return Training(
        objective,
        objective.build(Pixels(), 3),
        objective.initial_targets(samples.labels, 3, Storage()),
        SampleLoader(samples, batch_size=16, seed=5, device=CPU),
        FitSettings(
            epochs=epochs,
            micro_batches=micro_batches,
            optimizer=OptimizerSettings(lr=lr, weight_decay=0.0, schedule="constant"),
        ),
        num_classes=3,
        device=CPU,
    )


@pytest.mark.parametrize("reweight", [True, False])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_training_equals_the_oracle(tiny_samples: Samples, reweight: bool, micro_batches: int) -> None:
    """Weights, losses and targets over six epochs, three before E_s and three after."""
    noisy = tiny_samples.with_labels((tiny_samples.labels + (torch.arange(48) % 5 == 0)) % 3)
    training = _training(
        noisy, NoisyLabels(start_epoch=3, momentum=0.7, reweight=reweight), micro_batches=micro_batches
    )
    head = training.model.get_submodule("head")
    assert isinstance(head, nn.Linear)
    weight, bias = head.weight, head.bias
    oracle = Oracle(
        weight.detach().double().numpy().copy(), bias.detach().double().numpy().copy(),
        np.eye(3)[noisy.labels.numpy()], alpha=0.7, start_epoch=3, reweight=reweight,
    )  # fmt: skip
    inputs = (noisy.inputs.read(torch.arange(48)).double() / 255).flatten(1).numpy()
    losses: list[float] = []
    before = [0.0, 0.0]

    def check_step(training: Training) -> None:
        index = list(training.loader.epoch(training.epoch))[training.step - 1].index.tolist()
        expected = oracle.step(inputs, index, training.epoch, lr=0.5, momentum=0.9)
        sums = training.accumulator.sums_T2[0].tolist()
        total, counted = sums[0] - before[0], sums[1] - before[1]
        before[:] = sums
        losses.append(expected)
        assert total / counted == pytest.approx(expected, abs=1e-6)
        np.testing.assert_allclose(weight.detach().numpy(), oracle.weight, atol=1e-6)
        np.testing.assert_allclose(bias.detach().numpy(), oracle.bias, atol=1e-6)
        assert training.targets is not None
        np.testing.assert_allclose(training.targets.read(torch.arange(48)).numpy(), oracle.targets, atol=1e-6)

    def forget(training: Training) -> None:
        before[:] = [0.0, 0.0]

    fit(training, after_step=check_step, after_epoch=forget)
    assert len(losses) == 18
    assert not np.allclose(oracle.targets, np.eye(3)[noisy.labels.numpy()], atol=0.01), "the targets must have moved"


@pytest.mark.parametrize("reweight", [True, False])
def test_before_the_start_the_loss_is_cross_entropy_to_the_bit(reweight: bool) -> None:
    objective = NoisyLabels(start_epoch=2, reweight=reweight)
    for batch_size, classes in ((1, 2), (7, 3), (64, 10), (256, 100)):
        logits, labels = 3 * torch.randn(batch_size, classes), torch.randint(classes, (batch_size,))
        targets = objective.initial_targets(labels, classes, Storage())
        batch = Batch(logits, labels, torch.arange(batch_size))
        loss = objective.loss(nn.Identity(), batch, targets, Progress(1, 0.0))
        assert torch.equal(loss.mean, cross_entropy(logits, labels))
        assert targets is not None
        assert torch.equal(targets.read(batch.index), one_hot(labels, classes).float())


def test_targets_move_from_the_start_epoch_on() -> None:
    objective = NoisyLabels(start_epoch=2)
    labels = torch.tensor([0, 1])
    targets = objective.initial_targets(labels, 2, Storage())
    assert targets is not None
    batch = Batch(torch.zeros(2, 2), labels, torch.arange(2))
    objective.loss(nn.Identity(), batch, targets, Progress(2, 0.0))
    torch.testing.assert_close(targets.read(batch.index), torch.tensor([[0.95, 0.05], [0.05, 0.95]]))


@pytest.mark.parametrize("classes", [3, 300])  # the prediction is computed in another way for many classes
@pytest.mark.parametrize("reweight", [True, False])
def test_the_gradient_of_the_symmetric_loss_is_that_of_its_formula(classes: int, reweight: bool) -> None:
    generator = torch.Generator().manual_seed(classes)
    logits_BK = (3 * torch.randn(20, classes, generator=generator)).requires_grad_()
    labels_B, index_B = torch.randint(classes, (20,), generator=generator), torch.arange(20)
    objective = NoisyLabels(start_epoch=0, reweight=reweight, reverse_weight=0.3)
    targets = objective.initial_targets(labels_B, classes, Storage())
    loss = objective.loss(nn.Identity(), Batch(logits_BK, labels_B, index_B), targets, Progress(0, 0.0)).mean
    (gradient_BK,) = torch.autograd.grad(loss, logits_BK)

    exact_BK = logits_BK.detach().double().requires_grad_()
    p_BK = exact_BK.softmax(1)
    t_BK = 0.9 * one_hot(labels_B, classes) + 0.1 * p_BK.detach()
    w_B = t_BK.amax(1) if reweight else torch.ones(20, dtype=torch.float64)
    losses_B = -(t_BK * p_BK.log() + 0.3 * p_BK * t_BK.clamp_min(1e-4).log()).sum(1)
    expected = (w_B * losses_B).sum() / w_B.sum()
    (expected_BK,) = torch.autograd.grad(expected, exact_BK)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(gradient_BK.double(), expected_BK, atol=1e-7, rtol=1e-4)


def test_without_the_moving_average_it_is_ordinary_training() -> None:
    objective = NoisyLabels(start_epoch=AutoStart(), moving_average=False)
    assert objective.started([{}] * 20, 20) is None
    logits, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 1, 0])
    targets = objective.initial_targets(labels, 3, Storage())
    loss = objective.loss(nn.Identity(), Batch(logits, labels, torch.arange(5)), targets, Progress(9, 0.5))
    assert torch.equal(loss.mean, cross_entropy(logits, labels))


def _random_case(seed: int, batch: int, classes: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(batch, classes, generator=generator, dtype=torch.float64)
    targets = (4 * torch.randn(batch, classes, generator=generator, dtype=torch.float64)).softmax(1)
    return logits.float(), targets.float()


CASES = given(seed=st.integers(0, 10_000), batch=st.integers(1, 40), classes=st.integers(1, 30))


@settings(max_examples=60)
@CASES
def test_loss_equals_the_formula(seed: int, batch: int, classes: int) -> None:
    logits, targets = _random_case(seed, batch, classes)
    z, t = logits.double().numpy(), targets.double().numpy()
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    w = t.max(1)
    expected = -(w[:, None] * t * np.log(p)).sum() / w.sum()
    assert float(self_adaptive_cross_entropy(logits, targets)) == pytest.approx(expected, rel=1e-5, abs=1e-6)


@settings(max_examples=60)
@CASES
def test_loss_does_not_depend_on_the_order(seed: int, batch: int, classes: int) -> None:
    logits, targets = _random_case(seed, batch, classes)
    order = torch.randperm(batch, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(
        self_adaptive_cross_entropy(logits[order], targets[order]), self_adaptive_cross_entropy(logits, targets)
    )


@settings(max_examples=60)
@CASES
def test_without_reweighting_every_weight_is_one(seed: int, batch: int, classes: int) -> None:
    logits, targets = _random_case(seed, batch, classes)
    torch.testing.assert_close(
        self_adaptive_cross_entropy(logits, targets, reweight=False), cross_entropy(logits, targets)
    )


def _gradient(function: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    leaf = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(leaf), leaf)
    return gradient


def test_gradient_passes_through_the_prediction_only() -> None:
    """With p inside the targets' update the slope must still be w_i (p_i - t_i) / sum w."""
    logits = torch.randn(6, 4)
    labels, index = torch.tensor([0, 1, 2, 3, 0, 1]), torch.arange(6)
    store = TargetStore.from_labels(labels, 4, 0.6)
    gradient = _gradient(lambda z: self_adaptive_cross_entropy(z, store.update(index, z.softmax(1))), logits)
    rows = store.read(index)
    w = rows.amax(1, keepdim=True)
    torch.testing.assert_close(gradient, w * (logits.softmax(1) - rows) / w.sum())


@pytest.mark.parametrize("classes", [4, 300])
def test_gradient_with_targets_that_do_not_sum_to_one(classes: int) -> None:
    logits, targets = torch.randn(6, classes), torch.rand(6, classes)
    w = targets.amax(1, keepdim=True)
    gradient = _gradient(lambda z: self_adaptive_cross_entropy(z, targets), logits)
    torch.testing.assert_close(gradient, _gradient(lambda z: -(w * targets * z.log_softmax(1)).sum() / w.sum(), logits))


@pytest.mark.parametrize("kind", ["float32", "float16", "topk:2", "int8"])
@pytest.mark.parametrize("classes", [4, 300])
def test_gradient_of_a_step_is_that_of_the_rows_as_they_are_kept(kind: str, classes: int) -> None:
    """Rows that are rounded do not sum to one."""
    objective = NoisyLabels(start_epoch=0, momentum=0.6)
    logits, labels, index = torch.randn(6, classes), torch.arange(6) % classes, torch.arange(6)
    targets = objective.initial_targets(labels, classes, Storage.parse(kind))
    assert targets is not None
    gradient = _gradient(
        lambda z: objective.loss(nn.Identity(), Batch(z, labels, index), targets, Progress(0, 0.0)).terms[0].total,
        logits,
    )
    rows = targets.read(index)
    w = rows.amax(1, keepdim=True)
    torch.testing.assert_close(gradient, _gradient(lambda z: -(w * rows * z.log_softmax(1)).sum(), logits))


def test_a_second_derivative_is_refused() -> None:
    logits = torch.randn(6, 4, requires_grad=True)
    loss = self_adaptive_cross_entropy(logits, torch.full((6, 4), 0.25))
    with pytest.raises(RuntimeError, match="does not support second derivatives"):
        torch.autograd.grad(loss, logits, create_graph=True)


def test_a_wide_gap_between_logits_stays_finite() -> None:
    logits = torch.tensor([[500.0, 0.0, -500.0]])
    loss = self_adaptive_cross_entropy(logits, torch.tensor([[0.0, 0.5, 0.5]]))
    assert float(loss) == pytest.approx(750.0)


def test_mismatched_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="both must be B×K"):
        self_adaptive_cross_entropy(torch.zeros(2, 3), torch.zeros(2, 4))
    for targets, message in ((torch.zeros(0, 3), "the batch is empty"), (np.zeros((0, 3)), "must be tensors")):
        with pytest.raises(ValueError, match=message):
            self_adaptive_cross_entropy(torch.zeros(0, 3), targets)  # type: ignore[arg-type]


@pytest.mark.parametrize("classes", [10, 300])
@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_the_loss_takes_other_number_formats_layouts_and_large_logits(classes: int, shift: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, classes, generator=generator)
    targets = torch.randn(classes, 6, generator=generator).softmax(0)
    exact = targets.T.double()
    weight = exact.amax(1)
    wanted = -(weight[:, None] * exact * logits.double().log_softmax(1)).sum() / weight.sum()
    for own in (targets.T, exact, targets.T.bfloat16()):
        tolerance = 1e-2 if own.dtype == torch.bfloat16 else 1e-3 if shift else 1e-5
        assert float(self_adaptive_cross_entropy(logits + shift, own)) == pytest.approx(float(wanted), rel=tolerance)


@pytest.mark.parametrize("classes", [3, 300])  # either way to compute log p
def test_a_masked_class_is_as_if_it_was_not_there(classes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, classes, generator=generator).requires_grad_()
    targets = torch.rand(4, classes, generator=generator).softmax(1)
    wider = torch.cat([logits.detach(), torch.full((4, 1), -torch.inf)], 1).requires_grad_()
    found = self_adaptive_cross_entropy(wider, torch.cat([targets, torch.zeros(4, 1)], 1))
    expected = self_adaptive_cross_entropy(logits, targets)
    torch.testing.assert_close(found, expected)
    found.backward()
    expected.backward()
    assert wider.grad is not None
    torch.testing.assert_close(wider.grad[:, :classes], logits.grad)
    assert not wider.grad[:, classes:].any()


@pytest.mark.parametrize("classes", [3, 300])
@pytest.mark.parametrize(
    ("logit", "target", "message"),
    [
        (-float("inf"), 0.5, "the target of row 1 of the batch gives probability to a class whose logit is -inf"),
        (float("inf"), 0.5, "the logits of row 1 of the batch contain NaN or"),
        (float("nan"), 0.5, "contain NaN or"),
        (0.0, float("nan"), "the target of row 1 of the batch contains NaN"),
        (0.0, -0.5, "has a negative entry"),
        (0.0, 0.0, "is zero for every class"),
    ],
)
def test_what_has_no_finite_loss_is_refused(classes: int, logit: float, target: float, message: str) -> None:
    logits, targets = torch.zeros(2, classes), torch.zeros(2, classes)
    targets[0, 0] = 1
    logits[1, 1], targets[1, 1] = logit, target
    for reweight in (True, False):
        with pytest.raises(ValueError, match=message):
            self_adaptive_cross_entropy(logits, targets, reweight=reweight)
