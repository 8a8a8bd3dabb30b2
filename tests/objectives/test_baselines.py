"""Each baseline against its published formula, written out in numpy."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from networks import small_training
from selfadapt.core.errors import UserError
from selfadapt.data.batch import Batch
from selfadapt.data.dataset import Samples
from selfadapt.engine import checkpoint
from selfadapt.engine.fit import Training, fit
from selfadapt.models.backbone import FineTuned
from selfadapt.models.backbones.mlp import MLP
from selfadapt.models.backbones.whitened import WhitenedNet
from selfadapt.objectives.baselines.bootstrapping import HardBootstrapping, SoftBootstrapping
from selfadapt.objectives.baselines.co_teaching import CoTeaching, TwoClassifiers, estimate_noise_rate
from selfadapt.objectives.baselines.correction.joint_optimization import Relabelling
from selfadapt.objectives.baselines.correction.over_parameterization import OverParameterized
from selfadapt.objectives.baselines.early_learning import EarlyLearning
from selfadapt.objectives.baselines.early_learning_plus import EarlyLearningPlus
from selfadapt.objectives.baselines.early_stopping import EarlyStopping
from selfadapt.objectives.baselines.forward_correction import ForwardCorrection, estimate_transition
from selfadapt.objectives.baselines.generalized_cross_entropy import (
    GeneralizedCrossEntropy,
    TruncatedGeneralizedCrossEntropy,
)
from selfadapt.objectives.baselines.label_smoothing import LabelSmoothing
from selfadapt.objectives.baselines.mean_absolute_error import MeanAbsoluteError, absolute_errors
from selfadapt.objectives.baselines.mixup import Mixup
from selfadapt.objectives.baselines.selection.area_under_margin import Margins
from selfadapt.objectives.baselines.selection.deep_abstaining import Abstaining
from selfadapt.objectives.baselines.selection.divide_mix import DivideMix
from selfadapt.objectives.baselines.selection.label_filtering import LabelFiltering
from selfadapt.objectives.baselines.selection.mentor_net import MentorNet
from selfadapt.objectives.baselines.symmetric_cross_entropy import SymmetricCrossEntropy
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.method import Task
from selfadapt.objectives.noisy_labels import NoisyLabels
from selfadapt.objectives.objective import Metrics, Objective, Progress
from selfadapt.targets.store import Storage

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
B, K = 12, 5


def _softmax(z: Array) -> Array:
    e = np.exp(z - z.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


def _case(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(B, K, generator=generator), torch.randint(K, (B,), generator=generator)


def _loss(objective: Objective, logits: Tensor, labels: Tensor) -> float:
    targets = objective.initial_targets(labels, K, Storage())
    batch = Batch(logits, labels, torch.arange(B))
    return float(objective.loss(nn.Identity(), batch, targets, Progress(0, 0.0)).mean)


@dataclass(frozen=True)
class Formula:
    objective: Objective
    of: Callable[[Array, Array], Array]  # predictions and one-hot labels to the loss of each sample


def _against(p: Array, share: float = 0.3) -> Array:
    """log(1 - <p, t>) after one update of a target that was nothing: t = 0.3 p, with p within 1e-4 .. 1 - 1e-4."""
    p = p.clip(1e-4, 1 - 1e-4)
    return np.asarray(np.log(1 - share * (p * p / p.sum(1, keepdims=True)).sum(1)))


FORMULAS = {
    "label smoothing": Formula(
        LabelSmoothing(), lambda p, t: -((0.9 * t + 0.1 / K) * np.log(p)).sum(1)
    ),
    "generalised cross entropy": Formula(
        GeneralizedCrossEntropy(), lambda p, t: (1 - (p * t).sum(1) ** 0.7) / 0.7
    ),
    "symmetric cross entropy": Formula(
        SymmetricCrossEntropy(),  # as its authors' program has it: the label is clipped
        lambda p, t: -0.1 * (t * np.log(p)).sum(1) - (p * np.log(t.clip(1e-4, 1))).sum(1),
    ),
    "symmetric cross entropy, CIFAR100, the paper's A": Formula(
        SymmetricCrossEntropy(forward_weight=6.0, reverse_weight=0.1, log_of_zero=-4.0),
        lambda p, t: -6 * (t * np.log(p)).sum(1) - 0.1 * (p * np.where(t > 0, 0.0, -4.0)).sum(1),
    ),
    "soft bootstrapping": Formula(
        SoftBootstrapping(), lambda p, t: -((0.95 * t + 0.05 * p) * np.log(p)).sum(1)
    ),
    "hard bootstrapping": Formula(
        HardBootstrapping(), lambda p, t: -((0.8 * t + 0.2 * np.eye(K)[p.argmax(1)]) * np.log(p)).sum(1)
    ),
    "early learning": Formula(EarlyLearning(), lambda p, t: -(t * np.log(p)).sum(1) + 3 * _against(p)),
    "early learning, asymmetric noise": Formula(
        EarlyLearning(momentum=0.9, strength=1.0), lambda p, t: -(t * np.log(p)).sum(1) + _against(p, 0.1)
    ),
    "early learning, CIFAR100": Formula(
        EarlyLearning(momentum=0.9, strength=7.0), lambda p, t: -(t * np.log(p)).sum(1) + 7 * _against(p, 0.1)
    ),
    "self-adaptive, symmetric, before the start": Formula(
        NoisyLabels(start_epoch=1, reverse_weight=0.1), lambda p, t: -(t * np.log(p)).sum(1)
    ),
    "self-adaptive, symmetric, from the start on": Formula(  # targets that rest are the labels
        NoisyLabels(start_epoch=0, momentum=1.0, reverse_weight=0.1),
        lambda p, t: -(t * np.log(p)).sum(1) - 0.1 * (p * np.log(np.maximum(t, 1e-4))).sum(1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMULAS)
def test_the_loss_is_the_published_formula(name: str) -> None:
    for seed in range(5):
        logits, labels = _case(seed)
        expected = FORMULAS[name].of(_softmax(logits.double().numpy()), np.eye(K)[labels.numpy()]).mean()
        assert _loss(FORMULAS[name].objective, logits, labels) == pytest.approx(expected, rel=1e-5)


def test_mixup_with_a_share_of_one_is_ordinary_training(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = _case()
    monkeypatch.setattr("selfadapt.objectives.baselines.mixup.beta", lambda strength, generator: 0.0)
    assert _loss(Mixup(), logits, labels) == pytest.approx(_loss(ERM(), logits, labels))


def test_mixup_mixes_images_and_losses_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = _case()
    monkeypatch.setattr("selfadapt.objectives.baselines.mixup.beta", lambda strength, generator: 0.3)
    torch.manual_seed(4)
    ours = _loss(Mixup(), logits, labels)
    torch.manual_seed(4)
    partner = torch.randperm(B).numpy()
    z, t = logits.double().numpy(), np.eye(K)[labels.numpy()]
    mixed, target = 0.7 * z + 0.3 * z[partner], 0.7 * t + 0.3 * t[partner]
    assert ours == pytest.approx(-(target * np.log(_softmax(mixed))).sum(1).mean(), rel=1e-5)


def test_forward_correction_passes_the_prediction_through_the_matrix(tiny_samples: Samples) -> None:
    objective = ForwardCorrection()
    model = objective.build(MLP(16, width=8), 3)
    odds = torch.tensor([[0.8, 0.2, 0.0], [0.1, 0.6, 0.3], [0.0, 0.5, 0.5]])
    model.get_buffer("transition_KK").copy_(odds)
    images = tiny_samples.inputs.read(torch.arange(48)).float() / 255
    batch = Batch(images, tiny_samples.labels, torch.arange(48))
    ours = float(objective.loss(model, batch, None, Progress(0, 0.0)).mean.detach())
    p = _softmax(model(images).detach().double().numpy())
    given = p @ odds.double().numpy()
    assert ours == pytest.approx(-np.log(given[np.arange(48), tiny_samples.labels.numpy()]).mean(), rel=1e-5)


def test_the_matrix_is_found_from_typical_samples() -> None:
    """A network that predicts the noisy posterior: samples of class i are given label j with odds T_ij."""
    odds = torch.tensor([[0.7, 0.3, 0.0], [0.0, 0.6, 0.4], [0.2, 0.0, 0.8]])
    true = torch.randint(3, (3000,), generator=torch.Generator().manual_seed(0))
    confidence = 0.8 + 0.2 * torch.rand(3000, 1, generator=torch.Generator().manual_seed(1))
    predicted = confidence * odds[true] + (1 - confidence) / 3
    torch.testing.assert_close(estimate_transition(predicted), odds, atol=0.06, rtol=0)


@pytest.mark.parametrize("classes", [2, 50, 100])
def test_the_matrix_is_found_for_few_and_many_classes(classes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    true = torch.arange(6000) % classes
    odds = 0.6 * torch.eye(classes) + 0.4 * torch.eye(classes).roll(1, 1)
    confidence = 0.5 + 0.5 * torch.rand(6000, 1, generator=generator)
    found = estimate_transition(confidence * odds[true] + (1 - confidence) / classes)
    torch.testing.assert_close(found, odds, atol=0.15, rtol=0)


def test_truncation_leaves_out_what_was_unlikely_at_the_last_pruning() -> None:
    objective = TruncatedGeneralizedCrossEntropy()
    labels = torch.tensor([0, 0, 1, 1])
    targets = objective.initial_targets(labels, 2, Storage())
    assert targets is not None
    scores = torch.tensor([[3.0, 0.0], [0.0, 3.0], [0.0, 3.0], [3.0, 0.0]])
    batch = Batch(scores, labels, torch.arange(4))

    def slopes(epoch: int) -> list[bool]:
        logits = scores.clone().requires_grad_()
        fresh = Batch(logits, labels, torch.arange(4))
        objective.loss(nn.Identity(), fresh, targets, Progress(epoch, 0.0, epochs=12)).terms[0].total.backward()
        assert logits.grad is not None
        return [bool(row.any()) for row in logits.grad]

    assert slopes(0) == [True] * 4
    assert slopes(3) == [True] * 4, "the predictions of this epoch decide, but only from the next on"
    assert slopes(4) == [True, False, True, False]
    pruned = objective.loss(nn.Identity(), batch, targets, Progress(5, 0.0, epochs=12))
    constant = (1 - 0.5**0.7) / 0.7
    kept = (1 - _softmax(np.array([[3.0, 0.0]]))[0, 0] ** 0.7) / 0.7
    assert float(pruned.mean) == pytest.approx((constant + kept) / 2, rel=1e-5)


def test_pruning_comes_at_a_third_and_every_twelfth() -> None:
    objective = TruncatedGeneralizedCrossEntropy()
    last_before = [epoch for epoch in range(120) if objective._prunes_after(Progress(epoch, 0.0, epochs=120))]
    assert last_before == list(range(39, 120, 10))


def test_early_learning_targets_follow_the_prediction() -> None:
    objective = EarlyLearning()
    logits, labels = _case()
    targets = objective.initial_targets(labels, K, Storage())
    assert targets is not None
    expected = np.zeros((B, K))
    for _ in range(4):
        objective.loss(nn.Identity(), Batch(logits, labels, torch.arange(B)), targets, Progress(0, 0.0))
        p = _softmax(logits.double().numpy()).clip(1e-4, 1 - 1e-4)
        expected = 0.7 * expected + 0.3 * p / p.sum(1, keepdims=True)
        logits = logits + 0.5
        logits[:, 0] += 1
    np.testing.assert_allclose(targets.read(torch.arange(B)).numpy(), expected, atol=1e-6)


class _Halves(nn.Module):
    """Outputs of two networks side by side, as an image brings them."""

    def forward(self, images: Tensor) -> Tensor:
        return images


def test_co_teaching_learns_from_the_other_s_choice() -> None:
    labels = torch.zeros(4, dtype=torch.int64)
    margins = torch.tensor([[4.0, 1.0], [3.0, 2.0], [2.0, 3.0], [1.0, 4.0]])  # of the first and of the second
    outputs = torch.stack([margins[:, 0], torch.zeros(4), margins[:, 1], torch.zeros(4)], 1).requires_grad_()
    loss = CoTeaching(noise_rate=0.5).loss(
        _Halves(), Batch(outputs, labels, torch.arange(4)), None, Progress(5, 0.0, 20)
    )
    losses = np.log1p(np.exp(-margins.double().numpy()))
    expected = (losses[[2, 3], 0].sum() + losses[[0, 1], 1].sum()) / 2  # each learns what the other finds easy
    assert float(loss.mean.detach()) == pytest.approx(expected, rel=1e-5)
    loss.terms[0].total.backward()
    assert outputs.grad is not None
    assert outputs.grad[:2, :2].abs().sum() == 0
    assert outputs.grad[2:, 2:].abs().sum() == 0


def test_co_teaching_leaves_out_more_and_more() -> None:
    """1 - r min(T / T_k, 1) is kept, T counting from 1: the rate is reached in the tenth epoch of 200."""
    outputs, labels = torch.randn(100, 6), torch.zeros(100, dtype=torch.int64)
    kept = [
        int(
            CoTeaching(noise_rate=0.4)
            .loss(_Halves(), Batch(outputs, labels, torch.arange(100)), None, Progress(epoch, 0.0, 200))
            .terms[0]
            .weight
        )
        for epoch in (0, 4, 8, 9, 100)
    ]
    assert kept == pytest.approx([96, 80, 64, 60, 60], abs=1)
    assert kept[-2] == kept[-1]


def test_co_teaching_estimates_the_noise_rate_from_predictions() -> None:
    """A network that predicts the noisy posterior of each class, more surely for some samples than for others."""
    generator = torch.Generator().manual_seed(0)
    odds = torch.tensor([[0.7, 0.3, 0.0], [0.0, 0.6, 0.4], [0.2, 0.0, 0.8]])
    true = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), 3000, replacement=True, generator=generator)
    confidence = 0.8 + 0.2 * torch.rand(3000, 1, generator=generator)
    wrong = 1 - 0.5 * 0.7 - 0.3 * 0.6 - 0.2 * 0.8
    assert estimate_noise_rate(confidence * odds[true] + (1 - confidence) / 3) == pytest.approx(wrong, abs=0.05)


def test_the_two_networks_differ() -> None:
    pair = TwoClassifiers(MLP(16, width=8), 3)
    first, second = pair(torch.rand(5, 1, 4, 4)).chunk(2, 1)
    assert not torch.allclose(first, second)


def test_of_two_pretrained_networks_only_the_heads_differ() -> None:
    pair = TwoClassifiers(FineTuned(MLP(16, width=8)), 3)
    first, second = pair.first.state_dict(), pair.second.state_dict()
    assert {name for name in first if not torch.equal(first[name], second[name])} == {"head.weight", "head.bias"}
    whitened = TwoClassifiers(WhitenedNet(channels=3, width=8), 3)
    pairs = zip(whitened.first.parameters(), whitened.second.parameters(), strict=True)
    assert any(not one.requires_grad for one in whitened.first.parameters())
    assert all(torch.equal(one, two) for one, two in pairs if not one.requires_grad), "filters that are not learned"


def _training(objective: Objective, samples: Samples, epochs: int = 5) -> Training:
    return small_training(objective, samples, epochs)


def test_early_stopping_ends_with_the_best_network_also_when_resumed(tiny_samples: Samples, tmp_path: Path) -> None:
    held_out = [0.3, 0.8, 0.5, 0.8, 0.1]
    weights: list[Tensor] = []

    def measure(training: Training) -> Metrics:
        weights.append(next(iter(training.model.parameters())).detach().clone())
        return {"validation_accuracy_given": held_out[training.epoch]}

    whole = _training(EarlyStopping(), tiny_samples)
    fit(whole, tmp_path, after_epoch=measure)
    best = next(iter(whole.model.parameters()))
    assert torch.equal(best, weights[1]), "the first of two equal peaks"
    saved = checkpoint.load_newest(tmp_path)
    assert saved is not None
    assert any(torch.equal(tensor, weights[1]) for tensor in saved.model.values())
    again = _training(EarlyStopping(), tiny_samples)
    again.restore(saved)
    fit(again, tmp_path)
    assert torch.equal(next(iter(again.model.parameters())), weights[1])


def test_early_stopping_needs_a_validation_part() -> None:
    task = Task(num_classes=3, num_samples=9, epochs=4, has_validation=False)
    with pytest.raises(UserError, match="validation split"):
        EarlyStopping().suited(task)


@pytest.mark.parametrize(
    "objective",
    [
        Mixup(),
        ForwardCorrection(),
        TruncatedGeneralizedCrossEntropy(),
        EarlyLearning(),
        CoTeaching(),
        MentorNet(),
        OverParameterized(),
        EarlyLearningPlus(),
        Abstaining(warm_up=1, final_weight=1.0),
        LabelFiltering(),
        Relabelling(start_epoch=2, prior_weight=1.2, entropy_weight=0.8),
        DivideMix(warm_up=2),
        Margins(is_threshold_N=torch.arange(48) % 5 == 0),
    ],
    ids=lambda objective: type(objective).__name__,
)
def test_a_baseline_trains_and_resumes_to_the_same_bits(
    objective: Objective, tiny_samples: Samples, tmp_path: Path
) -> None:
    class Stopped(Exception):
        pass

    def stop(training: Training) -> None:
        if (training.epoch, training.step) == (3, 1):
            training.save(tmp_path)
            raise Stopped

    losses: list[float] = []
    whole = _training(objective, tiny_samples)
    fit(whole, after_epoch=lambda training: losses.append(training.accumulator.loss))
    if not isinstance(objective, MentorNet):  # whose threshold, and with it all weights, starts at zero
        assert losses[-1] < losses[0]
    with pytest.raises(Stopped):
        fit(_training(objective, tiny_samples), after_step=stop)
    resumed = _training(objective, tiny_samples)
    saved = checkpoint.load_newest(tmp_path)
    assert saved is not None
    resumed.restore(saved)
    fit(resumed)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name


def test_mean_absolute_error() -> None:
    logits, labels = _case()
    expected = np.abs(_softmax(logits.double().numpy()) - np.eye(K)[labels.numpy()]).sum(1)
    np.testing.assert_allclose(absolute_errors(logits, labels).numpy(), expected, rtol=1e-5, atol=1e-6)
    loss = MeanAbsoluteError().loss(nn.Identity(), Batch(logits, labels, torch.arange(B)), None, Progress(0, 0.0))
    assert float(loss.mean) == pytest.approx(expected.mean(), rel=1e-5)
