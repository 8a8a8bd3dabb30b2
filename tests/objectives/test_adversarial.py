"""TRADES with and without self-adaptive targets, and PGD training: formulas, steps, micro-batches, resumption."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from oracles.trades import TradesByHand, pgd_loss_by_hand
from selfadapt.core.errors import UserError
from selfadapt.data.dataset import Samples
from selfadapt.data.loader import SampleLoader
from selfadapt.engine import checkpoint
from selfadapt.engine.fit import FitSettings, Training, fit
from selfadapt.engine.optim import OptimizerSettings, learning_rate
from selfadapt.models.backbone import Backbone
from selfadapt.models.heads import Classifier
from selfadapt.objectives.adversarial import (
    PGDTraining,
    Trades,
    TradesSelfAdaptive,
    divergence,
    trades_loss,
    trades_sat_loss,
)
from selfadapt.objectives.method import Task
from selfadapt.objectives.objective import Term
from selfadapt.targets.store import Storage

Array = Any
CPU = torch.device("cpu")
LR = 0.2


class Normal(Backbone):
    """With batch normalisation, whose modes and running statistics must be as in the formula; without kinks."""

    num_features = 8

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Tanh())

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images)
        return features


def _training(samples: Samples, method: PGDTraining, *, epochs: int = 3, micro_batches: int = 1) -> Training:
    torch.manual_seed(0)
    model = Classifier(Normal(), 3)
    torch.manual_seed(1)  # from here on the starts of the attacks are drawn
    return Training(
        method,
        model,
        method.initial_targets(samples.labels, 3, Storage()),
        SampleLoader(samples, batch_size=20, seed=0, device=CPU),
        FitSettings(epochs=epochs, micro_batches=micro_batches, optimizer=OptimizerSettings(lr=LR)),
        num_classes=3,
        device=CPU,
    )


def _softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def _loss(clean: Array, perturbed: Array, targets: Array, weights: Array) -> float:
    p, q = _softmax(clean), _softmax(perturbed)
    first = -(weights * (targets * np.log(p)).sum(1)).sum() / weights.sum()
    return float(first + 6 * (p * np.log(p / q)).sum() / len(p))


def _gradient(loss: Any, at: Array, step: float = 1e-6) -> Array:
    slope = np.zeros_like(at)
    for place in np.ndindex(*at.shape):
        up, down = at.copy(), at.copy()
        up[place] += step
        down[place] -= step
        slope[place] = (loss(up) - loss(down)) / (2 * step)
    return slope


def _value(*terms: Term) -> Tensor:
    return torch.stack([term.total / term.weight for term in terms]).sum()


def _whole(pieces: list[tuple[Term, ...]]) -> Tensor:
    """As the loop does it: sums over the pieces first, then each term by its own weight."""
    sums = [
        Term(torch.stack([t.total for t in term]).sum(), torch.stack([t.weight for t in term]).sum())
        for term in zip(*pieces, strict=True)
    ]
    return _value(*sums)


@pytest.mark.parametrize("adaptive", [False, True])
def test_value_and_gradient_are_those_of_the_formula(adaptive: bool) -> None:
    random = np.random.default_rng(0)
    clean, perturbed = random.normal(0, 2, (2, 5, 4))
    labels = np.array([0, 3, 1, 1, 2])
    targets = random.dirichlet(np.ones(4), 5) if adaptive else np.eye(4)[labels]
    weights = targets.max(1) if adaptive else np.ones(5)
    ours_clean, ours_perturbed = (torch.tensor(z, dtype=torch.float32).requires_grad_() for z in (clean, perturbed))
    if adaptive:
        loss = trades_sat_loss(ours_clean, ours_perturbed, torch.tensor(targets)).mean
    else:
        loss = trades_loss(ours_clean, ours_perturbed, torch.tensor(labels)).mean
    assert loss.item() == pytest.approx(_loss(clean, perturbed, targets, weights), rel=1e-5)
    loss.backward()
    assert ours_clean.grad is not None
    assert ours_perturbed.grad is not None
    # Through p(x) in both terms, and through p(x').
    slope = _gradient(lambda z: _loss(z, perturbed, targets, weights), clean)
    np.testing.assert_allclose(ours_clean.grad.numpy(), slope, atol=1e-5)
    slope = _gradient(lambda z: _loss(clean, z, targets, weights), perturbed)
    np.testing.assert_allclose(ours_perturbed.grad.numpy(), slope, atol=1e-5)


def test_pieces_of_a_step_make_the_whole() -> None:
    clean, perturbed = torch.randn(2, 12, 4)
    targets = torch.rand(12, 4).softmax(1)
    pieces = [trades_sat_loss(clean[cut], perturbed[cut], targets[cut]).terms for cut in (slice(0, 5), slice(5, 12))]
    whole = trades_sat_loss(clean, perturbed, targets).mean
    torch.testing.assert_close(_whole(pieces), whole)
    by_pieces = torch.stack([_value(*piece) for piece in pieces]).mean()
    assert (by_pieces - whole).abs() > 1e-3  # dividing piece by piece is another loss


def test_before_the_start_the_two_methods_are_one() -> None:
    clean, perturbed, labels = torch.randn(6, 4), torch.randn(6, 4), torch.arange(6) % 4
    one_hot = torch.eye(4)[labels]
    torch.testing.assert_close(
        trades_loss(clean, perturbed, labels).mean, trades_sat_loss(clean, perturbed, one_hot).mean
    )


def test_a_large_gap_of_logits_stays_finite() -> None:
    clean = torch.tensor([[200.0, -200.0, 0.0]], requires_grad=True)
    value = divergence(clean, -clean).sum()
    value.backward()
    assert value.isfinite()
    assert clean.grad is not None
    assert clean.grad.isfinite().all()


@pytest.mark.parametrize("micro_batches", [1, 2, 3])
@pytest.mark.parametrize("start_epoch", [None, 1])
def test_training_equals_the_formula_written_out(
    tiny_samples: Samples, start_epoch: int | None, micro_batches: int
) -> None:
    """Attack, targets, terms and running statistics over three epochs; the targets begin to move after the first."""
    method = Trades() if start_epoch is None else TradesSelfAdaptive(start_epoch=start_epoch)
    training = _training(tiny_samples, method, micro_batches=micro_batches)
    model = Classifier(Normal(), 3)
    model.load_state_dict(training.model.state_dict())
    hand = TradesByHand(model, np.eye(3)[tiny_samples.labels.numpy()], [torch.Generator().manual_seed(1)], start_epoch)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
    settings, steps = training.settings, training.loader.steps_per_epoch
    for epoch in range(settings.epochs):
        for step, batch in enumerate(training.loader.epoch(epoch)):
            optimizer.param_groups[0]["lr"] = learning_rate(settings.optimizer, epoch + step / steps, settings.epochs)
            pieces = [(0, part.input, part.label, part.index) for part in batch.split(micro_batches)]
            optimizer.zero_grad()
            hand.loss(pieces, epoch).backward()
            optimizer.step()
    torch.manual_seed(1)
    before = {name: value.clone() for name, value in training.model.state_dict().items()}
    fit(training)
    for name, expected in model.state_dict().items():
        # An attack goes by signs: where a gradient is nearly 0, its last bit may move a pixel the other way.
        moved = (expected - before[name]).double().norm()
        assert (training.model.state_dict()[name] - expected).double().norm() <= 0.02 * moved + 1e-5, name
    assert not torch.equal(before["head.weight"], model.state_dict()["head.weight"])
    if training.targets is not None:
        rows = training.targets.read(torch.arange(48)).numpy()
        np.testing.assert_allclose(rows, hand.table, atol=1e-3)
        assert rows.max(1).min() < 1


def test_pgd_training_is_cross_entropy_on_the_moved_images(tiny_samples: Samples) -> None:
    training = _training(tiny_samples, PGDTraining(eps=0.05, step=0.01))
    batch = next(iter(training.loader.epoch(0)))
    shift = 0.05 * (2 * torch.rand(batch.input.shape, generator=torch.Generator().manual_seed(3)) - 1)
    model = Classifier(Normal(), 3)
    model.load_state_dict(training.model.state_dict())
    expected = pgd_loss_by_hand(model.train(), batch.input, batch.label, shift, eps=0.05, step=0.01)
    training.model.train()
    torch.manual_seed(3)
    loss = training.objective.loss(training.model, batch, None, training.progress).mean
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    for own, other in zip(training.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad)


@pytest.mark.parametrize("method", [PGDTraining(), Trades(), TradesSelfAdaptive(start_epoch=1)])
def test_a_stopped_training_goes_on_to_the_same_bits(
    method: PGDTraining, tiny_samples: Samples, tmp_path: Path
) -> None:
    whole = _training(tiny_samples, method, micro_batches=2)
    fit(whole)

    class Stopped(Exception):
        pass

    def stop(training: Training) -> None:
        if (training.epoch, training.step) == (1, 2):
            training.save(tmp_path)
            raise Stopped

    with pytest.raises(Stopped):
        fit(_training(tiny_samples, method, micro_batches=2), after_step=stop)
    resumed = _training(tiny_samples, method, micro_batches=2)
    saved = checkpoint.load_newest(tmp_path)
    assert saved is not None
    resumed.restore(saved)
    fit(resumed)
    for name, expected in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], expected), name
    if whole.targets is not None and resumed.targets is not None:
        every = torch.arange(48)
        assert torch.equal(resumed.targets.read(every), whole.targets.read(every))


def test_defaults_are_the_papers() -> None:
    for method in (Trades(), PGDTraining(), TradesSelfAdaptive()):
        attack = method.inner_attack
        assert (attack.eps, attack.step, attack.steps) == (0.031, 0.007, 10)
    assert (Trades().inner_attack.start, Trades().inner_attack.loss) == ("normal", "kl")
    assert (PGDTraining().inner_attack.start, PGDTraining().inner_attack.loss) == ("ball", "cross-entropy")
    settled = TradesSelfAdaptive().suited(Task(num_classes=10, num_samples=50_000, epochs=100))
    assert (settled.start_epoch, settled.momentum, settled.beta) == (70, 0.9, 6)
    asked = settled.attack_after(71)
    assert settled.attack_after(70) is None
    assert asked is not None
    assert asked.attack.settings["steps"] == 20
    assert Trades(curve_images=0).suited(Task(num_classes=10, num_samples=9, epochs=1)).attack_after(1) is None


def test_what_cannot_be_trained_is_refused() -> None:
    task = Task(num_classes=10, num_samples=100, epochs=10)
    with pytest.raises(UserError, match="start-epoch 10 must be less than"):
        TradesSelfAdaptive(start_epoch=10).suited(task)
    with pytest.raises(UserError, match="takes images"):
        Trades().suited(replace(task, sees_images=False))
    with pytest.raises(UserError, match="--eps -1"):
        Trades(eps=-1.0)
