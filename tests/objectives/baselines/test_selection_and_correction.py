"""Baselines that select samples or correct labels, against their formulas over several steps."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from cli.program import process, run_json
from networks import Smooth
from selfadapt.core.errors import UserError
from selfadapt.data.batch import Batch
from selfadapt.objectives.baselines.correction.joint_optimization import JointOptimization, Relabelling, final_labels
from selfadapt.objectives.baselines.correction.over_parameterization import OverParameterized
from selfadapt.objectives.baselines.early_learning_plus import EarlyLearningPlus, TwoWithAverages, mixed_losses
from selfadapt.objectives.baselines.selection.deep_abstaining import Abstaining, DeepAbstaining
from selfadapt.objectives.baselines.selection.label_filtering import LabelFiltering, StudentAndTeacher
from selfadapt.objectives.baselines.selection.mentor_net import MentorNet
from selfadapt.objectives.baselines.selection.selected_samples import OnSelected
from selfadapt.objectives.method import Task
from selfadapt.objectives.objective import Objective, Progress
from selfadapt.targets.store import Storage, TargetStore

B, K = 12, 5
Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def _case(outputs: int = K, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(B, outputs, generator=generator)
    return logits.requires_grad_(), torch.randint(K, (B,), generator=generator)


def _softmax(z: Array) -> Array:
    e = np.exp(z - z.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


class _Outputs(nn.Module):
    """A network that returns its input, with the buffers of a method's own network."""

    def __init__(self, buffers: dict[str, float]) -> None:
        super().__init__()
        for name, value in buffers.items():
            self.register_buffer(name, torch.tensor(value))

    def forward(self, logits_BK: Tensor) -> Tensor:
        return logits_BK


def _store(objective: Objective, labels: Tensor) -> TargetStore:
    targets = objective.initial_targets(labels, K, Storage())
    assert targets is not None
    return targets


def test_over_parameterisation_takes_the_published_steps() -> None:
    """u and v as the parameters of each sample, moved by the gradient of the mean loss as autograd has it."""
    logits, labels = _case()
    method = OverParameterized(label_lr=300.0, others_lr=70.0)
    targets = _store(method, labels)
    given = one_hot(labels, K).double()
    u = torch.full((B, 1), 1e-8, dtype=torch.float64, requires_grad=True)
    v = torch.full((B, K), 1e-8, dtype=torch.float64, requires_grad=True)
    u.data += 0.2 * torch.rand(B, 1, dtype=torch.float64)
    v.data += 0.2 * torch.rand(B, K, dtype=torch.float64)
    start = torch.where(given.bool(), u, v).detach().float()
    targets.rows.fill(torch.arange(B), start)
    for _ in range(3):
        z = logits.detach().double()
        p = z.softmax(1)
        added, removed = u.square() * given, v.square() * (1 - given)
        added, removed = added.clamp(0, 1), removed.clamp(0, 1)
        shifted = (p + added - removed.detach()).clamp_min(1e-4)
        fit = -(given * (shifted / shifted.sum(1, keepdim=True)).clamp_min(1e-4).log()).sum(1)
        squares = (one_hot(z.argmax(1), K) + added - removed - given).square().sum(1)
        expected = (fit + squares).mean()
        loss = method.loss(nn.Identity(), Batch(logits, labels, torch.arange(B)), targets, Progress(0, 0.0))
        assert float(loss.mean.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
        of_u, of_v = torch.autograd.grad(expected, (u, v))
        u, v = (u - 300 * of_u).detach().requires_grad_(), (v - 70 * of_v).detach().requires_grad_()
        rows = torch.where(given.bool(), u, v).detach().float()
        torch.testing.assert_close(targets.read(torch.arange(B)), rows, rtol=1e-4, atol=1e-6)


def test_over_parameterisation_refuses_targets_without_enough_digits() -> None:
    with pytest.raises(UserError, match="float32"):
        OverParameterized().initial_targets(torch.zeros(3, dtype=torch.int64), K, Storage(dtype=torch.float16))


def test_abstention_follows_the_authors_schedule() -> None:
    method, network = (
        Abstaining(warm_up=2, final_weight=1.0),
        _Outputs({"mean_loss": np.nan, "initial_weight": np.nan}),
    )
    mean: float | None = None
    first: float | None = None
    for step in range(6):
        epoch = step // 2 + 1 if step < 4 else 4
        logits, labels = _case(K + 1, step)
        z, y = logits.detach().double().numpy(), labels.numpy()
        p = _softmax(z)
        h = -np.log(_softmax(z[:, :-1])[np.arange(B), y])
        now = float(((1 - p[:, -1]) * h).mean())
        mean = now if mean is None else 0.05 * now + 0.95 * mean
        if epoch < 2:
            expected = float(-np.log(p[np.arange(B), y]).mean())
        else:
            first = mean / 64 if first is None else first
            weight = first + (1 - first) * (epoch - 2) / (6 - 2)
            expected = float(((1 - p[:, -1]) * h - weight * np.log(1 - p[:, -1])).mean())
        loss = method.loss(network, Batch(logits, labels, torch.arange(B)), None, Progress(epoch, 0.0, 6))
        assert float(loss.mean.detach()) == pytest.approx(expected, rel=1e-5)


def test_left_out_samples_have_no_influence() -> None:
    logits, labels = _case()
    chosen = torch.arange(B) % 3 > 0
    loss = OnSelected(chosen_N=chosen).loss(nn.Identity(), Batch(logits, labels, torch.arange(B)), None, Progress(0, 0))
    expected = nn.functional.cross_entropy(logits[chosen], labels[chosen])
    torch.testing.assert_close(loss.mean, expected)
    (gradient,) = torch.autograd.grad(loss.mean, logits)
    assert not gradient[~chosen].any()
    nothing = OnSelected(chosen_N=torch.arange(2 * B) >= B)
    loss = nothing.loss(nn.Identity(), Batch(logits, labels, torch.arange(B)), None, Progress(0, 0))
    assert float(loss.mean.detach()) == 0


def test_the_curriculum_weighs_losses_by_their_percentile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "randperm", lambda count, device=None: torch.arange(count))
    network, threshold = _Outputs({"threshold": 0.0}), 0.0
    for step, epoch in enumerate([0, 16, 17, 99]):
        logits, labels = _case(seed=step)
        losses = -np.log(_softmax(logits.detach().double().numpy())[np.arange(B), labels.numpy()])
        threshold = 0.9 * threshold + 0.1 * float(np.percentile(losses, 75))
        weights = np.clip(1 - (losses - threshold) / 1.0, 0, 1)
        weights[6 if epoch < 17 else 11 :] = 0  # the last half of a random order, or the last of twelve
        loss = MentorNet().loss(network, Batch(logits, labels, torch.arange(B)), None, Progress(epoch, 0.0, 100))
        assert float(loss.mean.detach()) == pytest.approx(float((weights * losses).mean()), rel=1e-5)


def test_labels_are_replaced_by_the_mean_over_the_window() -> None:
    method = Relabelling(start_epoch=3, prior_weight=1.2, entropy_weight=0.8)
    _, labels = _case()
    targets = _store(method, labels)
    seen: list[Array] = []
    for epoch in range(6):
        logits, _ = _case(seed=epoch)
        p = _softmax(logits.detach().double().numpy())
        t = np.eye(K)[labels.numpy()] if epoch < 3 else np.mean(seen[-3:], axis=0)
        prior, entropy = -np.log(p.mean(0)).mean(), -(p * np.log(p)).sum(1).mean()
        expected = -(t * np.log(p)).sum(1).mean() + 1.2 * prior + 0.8 * entropy
        loss = method.loss(nn.Identity(), Batch(logits, labels, torch.arange(B)), targets, Progress(epoch, 0.0, 6))
        assert float(loss.mean.detach()) == pytest.approx(expected, rel=1e-5)
        seen.append(p)
    final = final_labels([targets.read(torch.arange(B))], K)
    np.testing.assert_allclose(final.numpy(), np.mean(seen[-3:], axis=0), atol=1e-6)


def test_each_network_is_regularised_by_the_average_of_the_other() -> None:
    torch.manual_seed(0)
    method = EarlyLearningPlus(average=0.5)
    network = method.build(Smooth(), 3)
    assert isinstance(network, TwoWithAverages)
    images, labels = torch.rand(B, 1, 4, 4), torch.arange(B) % 3
    targets = method.initial_targets(labels, 3, Storage())
    assert targets is not None
    of_averages = [average(images).detach().softmax(1) for average in network.averages]
    state = torch.get_rng_state()
    loss = method.loss(network, Batch(images, labels, torch.arange(B)), targets, Progress(0, 0.0))
    rows = torch.cat([0.3 * p for p in of_averages], 1)
    torch.testing.assert_close(targets.read(torch.arange(B)), rows)
    torch.set_rng_state(state)
    expected = torch.zeros(())
    mixtures = []
    for _ in range(2):
        gamma = torch._standard_gamma(torch.ones(2, dtype=torch.float64))
        share = float(gamma.amax() / gamma.sum())
        mixtures.append((share, torch.randperm(B)))
    own = ((network.first, rows[:, 3:]), (network.second, rows[:, :3]))
    for (share, partner), (each, row) in zip(mixtures, own, strict=True):
        logits = each(share * images + (1 - share) * images[partner])
        mixed = [share * values + (1 - share) * values[partner] for values in (one_hot(labels, 3).float(), row)]
        expected = expected + mixed_losses(logits, mixed[0], mixed[1], 3.0).mean()
    torch.testing.assert_close(loss.mean, expected)
    before, now = next(network.averages.parameters()).clone(), next(network.first.parameters())
    now.data += 1
    method.after_step(network, Progress(1, 0.9))
    torch.testing.assert_close(next(network.averages.parameters()), 0.5 * before + 0.5 * now)
    network.eval()
    torch.testing.assert_close(network(images), (network.first(images) + network.second(images)) / 2)


def test_the_regularised_loss_is_the_published_formula() -> None:
    logits, labels = _case()
    p, t = _softmax(logits.detach().double().numpy()).clip(1e-4, 1 - 1e-4), np.full((B, K), 1 / K)
    y = 0.7 * np.eye(K)[labels.numpy()] + 0.3 * np.eye(K)[labels.numpy()[::-1]]
    expected = -(y * np.log(p)).sum(1) + 3 * np.log(1 - (p * t).sum(1))
    found = mixed_losses(logits, torch.tensor(y).float(), torch.tensor(t).float(), 3.0)
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-4)


@pytest.mark.parametrize("method", [DeepAbstaining(warm_up=3), JointOptimization(start_epoch=3)])
def test_a_start_after_the_end_is_refused(method: DeepAbstaining | JointOptimization) -> None:
    with pytest.raises(UserError, match="must be less than --epochs, 3"):
        method.suited(Task(num_classes=3, num_samples=9, epochs=3))


def test_the_networks_have_their_buffers() -> None:
    assert MentorNet().build(Smooth(), 3).get_buffer("threshold") == 0
    outputs = Abstaining(warm_up=1, final_weight=1.0).build(Smooth(), 3)(torch.rand(2, 1, 4, 4))
    assert outputs.shape == (2, 4)


def test_a_round_keeps_labels_and_learns_from_the_teacher() -> None:
    torch.manual_seed(0)
    labels = torch.arange(B) % 3
    voted = torch.where(torch.arange(B) < 4, labels, (labels + 1) % 3)
    method = LabelFiltering(voted_N=voted, teacher_momentum=0.25)
    network = method.build(Smooth(), 3)
    assert isinstance(network, StudentAndTeacher)
    next(network.teacher.parameters()).data += 1
    images = torch.rand(2, B, 1, 4, 4)
    batch = Batch(images[0], labels, torch.arange(B), second=images[1])
    targets = method.initial_targets(labels, 3, Storage())
    assert targets is not None
    loss = method.loss(network, batch, targets, Progress(5, 0.05))
    logits = network.student(images[0]).detach().double().numpy()
    p, taught = _softmax(logits), _softmax(network.teacher(images[1]).detach().double().numpy())
    fit = -np.log(p[np.arange(4), labels[:4].numpy()]).mean()
    agreement = ((p - taught) ** 2).mean(1).mean()
    expected = fit + 100 * np.exp(-5 * 0.25) * agreement
    assert float(loss.mean.detach()) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(targets.read(torch.arange(B)).numpy(), 0.1 * taught, atol=1e-6)
    student, teacher = next(network.student.parameters()), next(network.teacher.parameters())
    expected_weights = 0.25 * teacher + 0.75 * student
    method.after_step(network, Progress(5, 0.05))
    torch.testing.assert_close(teacher, expected_weights)
    network.eval()
    torch.testing.assert_close(network(images[0]), network.teacher(images[0]))


@pytest.mark.distributed
@pytest.mark.parametrize("method", ["dac", "self", "divide-mix"])
def test_two_processes_train_a_network_with_batch_normalisation(method: str, tmp_path: Path) -> None:
    arguments = ("train", "digits", "--method", method, "--model", "mlp", "--limit", "300", "--epochs", "4")
    found = run_json(*arguments, "--devices", "2", "--out", "two", folder=tmp_path, program=process)
    assert found["epochs"] == 4


@pytest.mark.parametrize("method", ["aum", "dac", "joint-optimization", "self"])
def test_a_finished_method_of_several_trainings_is_loaded(method: str, tmp_path: Path) -> None:
    arguments = ("train", "digits", "--method", method, "--model", "mlp", "--noise", "symmetric:0.4", "--limit", "300")
    whole = run_json(*arguments, "--epochs", "3", "--out", "whole", folder=tmp_path)
    again = run_json(*arguments, "--epochs", "3", "--out", "whole", "--resume", folder=tmp_path)
    assert again["test_accuracy"] == whole["test_accuracy"]
    trainings = json.loads((tmp_path / "whole" / "run.json").read_text())["other_trainings_seconds"]
    assert len(trainings) == (2 if method in ("aum", "self") else 1)
