"""The terms of TRADES, with and without self-adaptive targets, against the formula in numpy, in steps and pieces."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from selfadapt.attacks.pgd import perturb
from selfadapt.objectives.adversarial import (
    PGD_TRAINING_ATTACK,
    TRADES_ATTACK,
    Term,
    divergence,
    trades_sat_terms,
    trades_terms,
)
from selfadapt.targets.store import TargetStore

Array = Any


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


def _whole(pieces: list[tuple[Term, Term]]) -> Tensor:
    """As the loop does it: sums over the pieces first, then each term by its own weight."""
    sums = [Term(sum(t.total for t in term), sum(t.weight for t in term)) for term in zip(*pieces, strict=True)]
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
        terms = trades_sat_terms(ours_clean, ours_perturbed, torch.tensor(targets))
    else:
        terms = trades_terms(ours_clean, ours_perturbed, torch.tensor(labels))
    loss = _value(*terms)
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
    pieces = [trades_sat_terms(clean[cut], perturbed[cut], targets[cut]) for cut in (slice(0, 5), slice(5, 12))]
    whole = _value(*trades_sat_terms(clean, perturbed, targets))
    torch.testing.assert_close(_whole(pieces), whole)
    by_pieces = torch.stack([_value(*piece) for piece in pieces]).mean()
    assert (by_pieces - whole).abs() > 1e-3  # dividing piece by piece is another loss


def test_several_steps_of_training_equal_those_written_out() -> None:
    """Model, targets and attack together: the other path is numpy for the targets and plain torch for the loss."""
    images, labels = torch.rand(24, 1, 3, 3), torch.arange(24) % 3

    def network() -> nn.Sequential:
        torch.manual_seed(3)
        return nn.Sequential(nn.Flatten(), nn.Linear(9, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

    ours, theirs = network(), network()
    store = TargetStore.from_labels(labels, num_classes=3, momentum=0.9)
    table = np.eye(3)[labels.numpy()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (ours, theirs)]
    for step in range(6):
        index = torch.randperm(24, generator=torch.Generator().manual_seed(step))[:16]
        x, y = images[index], labels[index]
        moved = perturb(ours, x, y, TRADES_ATTACK, torch.Generator().manual_seed(step))
        clean = ours(x)
        rows = store.update(index, clean.detach().softmax(1))
        optimizers[0].zero_grad()
        _value(*trades_sat_terms(clean, ours(moved), rows)).backward()
        optimizers[0].step()

        theirs.eval()
        start = torch.Generator().manual_seed(step)
        point = (x + 0.001 * torch.randn(x.shape, generator=start)).clamp(0, 1)
        for _ in range(10):
            point = point.detach().requires_grad_()
            q, p = theirs(point).log_softmax(1), theirs(x).softmax(1)
            slope = torch.autograd.grad(nn.functional.kl_div(q, p, reduction="sum"), point)[0]
            point = torch.min(torch.max(point + 0.007 * slope.sign(), x - 0.031), x + 0.031).clamp(0, 1)
        theirs.train()
        logits, others = theirs(x), theirs(point.detach())
        table[index] = 0.9 * table[index] + 0.1 * _softmax(logits.detach().numpy())
        t = torch.tensor(table[index], dtype=torch.float32)
        w = t.max(1).values
        first = -(w * (t * logits.log_softmax(1)).sum(1)).sum() / w.sum()
        second = 6 / 16 * nn.functional.kl_div(others.log_softmax(1), logits.softmax(1), reduction="sum")
        optimizers[1].zero_grad()
        (first + second).backward()
        optimizers[1].step()
    for (name, own), other in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5, msg=name)
    assert not torch.equal(ours.state_dict()["1.weight"], network().state_dict()["1.weight"])


def test_before_the_start_the_two_methods_are_one() -> None:
    clean, perturbed, labels = torch.randn(6, 4), torch.randn(6, 4), torch.arange(6) % 4
    one_hot = torch.eye(4)[labels]
    torch.testing.assert_close(
        _value(*trades_terms(clean, perturbed, labels)), _value(*trades_sat_terms(clean, perturbed, one_hot))
    )


def test_a_large_gap_of_logits_stays_finite() -> None:
    clean = torch.tensor([[200.0, -200.0, 0.0]], requires_grad=True)
    value = divergence(clean, -clean).sum()
    value.backward()
    assert value.isfinite()
    assert clean.grad is not None
    assert clean.grad.isfinite().all()


def test_the_attacks_of_training_are_the_papers() -> None:
    for attack in (TRADES_ATTACK, PGD_TRAINING_ATTACK):
        assert (attack.eps, attack.step, attack.steps) == (0.031, 0.007, 10)
    assert (TRADES_ATTACK.start, TRADES_ATTACK.loss) == ("normal", "kl")
    assert (PGD_TRAINING_ATTACK.start, PGD_TRAINING_ATTACK.loss) == ("ball", "cross-entropy")
