"""PGD: constraints, strength, and agreement with foolbox from the same start."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from attacked import RADIUS, digits_network
from selfadapt.attacks.attack import MISCLASSIFIED, ROBUST, Norm
from selfadapt.attacks.pgd import PGD, LossName, StartName, fgsm, loss_of, margin, perturb
from selfadapt.core.errors import UserError
from selfadapt.models.backbone import Normalised
from selfadapt.models.backbones.mlp import MLP

PGD20 = PGD(eps=RADIUS, step=RADIUS / 4)


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _standing(attack: PGD) -> float:
    model, images, labels = digits_network()
    return (attack.outcome(model, images, labels, _generator()) == ROBUST).double().mean().item()


@settings(max_examples=60)
@given(
    eps=st.floats(0, 2),
    step=st.floats(0, 3),
    steps=st.integers(0, 4),
    norm=st.sampled_from(["linf", "l2"]),
    start=st.sampled_from(["ball", "normal", "none"]),
    loss=st.sampled_from(["cross-entropy", "margin", "kl"]),
    restarts=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_moved_images_lie_in_the_ball_and_within_0_and_1(
    eps: float, step: float, steps: int, norm: Norm, start: StartName, loss: LossName, restarts: int, seed: int
) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 3))
    images = torch.rand(4, 1, 3, 4).mul(1.4).sub(0.2).clamp(0, 1)  # some pixels at the borders
    labels = model(images).argmax(1)
    attack = PGD(eps=eps, step=step, steps=steps, norm=norm, start=start, loss=loss, restarts=restarts)
    moved = perturb(model, images, labels, attack, _generator(seed))
    assert moved.min() >= 0
    assert moved.max() <= 1
    shift = (moved - images).flatten(1)
    length = shift.abs().amax(1) if norm == "linf" else shift.norm(dim=1)
    assert (length <= eps + 1e-6 * (1 + eps)).all()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_without_steps_and_start_robust_is_clean(norm: Norm) -> None:
    model, images, labels = digits_network()
    clean = (model(images).argmax(1) == labels).double().mean().item()
    assert _standing(PGD(steps=0, start="none", norm=norm)) == clean
    assert _standing(PGD(eps=0, norm=norm)) == clean
    assert clean > 0.9


def test_more_steps_do_more_harm() -> None:
    accuracies = [_standing(replace(PGD20, steps=steps)) for steps in (1, 3, 10, 20, 40)]
    assert all(later <= earlier + 0.005 for earlier, later in pairwise(accuracies))
    assert accuracies[0] - accuracies[-1] > 0.2


def test_restarts_and_a_larger_radius_do_more_harm() -> None:
    assert _standing(replace(PGD20, restarts=3)) <= _standing(PGD20)
    assert _standing(replace(PGD20, eps=0.5, step=0.1)) == 0


def test_images_wrong_as_they_are_are_left_out() -> None:
    model, images, labels = digits_network()
    wrong = model(images).argmax(1) != labels
    seen = []
    model.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    outcome = replace(PGD20, restarts=2).outcome(model, images, labels, _generator())
    assert torch.equal(outcome == MISCLASSIFIED, wrong)
    assert 0 < wrong.sum() < 20
    standing = len(images) - int(wrong.sum())
    assert seen[0] == len(images)
    assert seen[1:22] == [standing] * 21  # 20 steps and the last look
    assert max(seen[22:]) < standing  # those that were fooled are not attacked again
    assert set(outcome.tolist()) == {MISCLASSIFIED, 1, ROBUST}


def test_one_attempt_gives_the_outcome_of_its_perturbed_images() -> None:
    model, images, labels = digits_network()
    right = model(images).argmax(1) == labels
    images, labels = images[right], labels[right]
    moved = perturb(model, images, labels, PGD20, _generator())
    fooled = PGD20.outcome(model, images, labels, _generator()) == 1
    assert torch.equal(model(moved).argmax(1) != labels, fooled)


def test_the_model_is_as_it_was() -> None:
    model, images, labels = digits_network()
    model.train()
    model[1].eval()  # type: ignore[index]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    perturb(model, images, labels, PGD20, _generator())
    PGD20.outcome(model, images, labels, _generator())
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())  # batch norm's too
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_training_attacks_the_network_without_its_mirror_images() -> None:
    """Outside training the answer may be the mean over an image and its mirror image; what is trained is not."""
    plain, mirrored = (
        nn.Sequential(Normalised(MLP(64, width=8), torch.zeros(1), torch.ones(1), mirror=mirror), nn.Linear(8, 10))
        for mirror in (False, True)
    )
    mirrored.load_state_dict(plain.state_dict())
    _, images, labels = digits_network()
    moved = [perturb(model, images, labels, PGD20, _generator()) for model in (plain, mirrored)]
    assert torch.equal(*moved)
    assert mirrored[0].mirror, "as it was"
    assert not torch.equal(plain.eval()(images), mirrored.eval()(images))


def test_losses_are_what_they_say() -> None:
    model, images, labels = digits_network()
    with torch.no_grad():
        logits = model(images)
        moved = model((images + 0.1).clamp(0, 1))
    pairs = zip(logits, labels.tolist(), strict=True)
    others = [max(float(z) for j, z in enumerate(row) if j != y) for row, y in pairs]
    own = logits[torch.arange(len(labels)), labels]
    torch.testing.assert_close(margin(logits, labels), torch.tensor(others) - own)
    p, q = logits.softmax(1).double(), moved.softmax(1).double()
    torch.testing.assert_close(
        loss_of(model, images, labels, "kl")(moved).double(), (p * (p / q).log()).sum(1), rtol=1e-4, atol=1e-6
    )
    assert loss_of(model, images, labels, "kl")(logits).abs().max() < 1e-6


def test_the_inner_attack_of_trades_starts_beside_the_image() -> None:
    """The divergence has no slope at the image itself, so the start must differ; and the attack must get somewhere."""
    model, images, labels = digits_network()
    inner = PGD(eps=RADIUS, step=RADIUS / 4, steps=10, start="normal", loss="kl")
    start = perturb(model, images, labels, replace(inner, steps=0), _generator())
    inside = (images > 0.01) & (images < 0.99)
    assert (start - images)[inside].std().item() == pytest.approx(0.001, rel=0.05)
    wrong = (model(perturb(model, images, labels, inner, _generator())).argmax(1) != labels).double().mean()
    assert wrong > 0.15  # without an attack 0.035


def test_fgsm_is_one_signed_step() -> None:
    model, images, labels = digits_network()
    point = images.clone().requires_grad_()
    cross_entropy(model(point), labels).backward()
    assert point.grad is not None
    expected = (images + RADIUS * point.grad.sign()).clamp(0, 1)
    torch.testing.assert_close(perturb(model, images, labels, fgsm(RADIUS), _generator()), expected)


@pytest.mark.parametrize(("norm", "eps"), [("linf", RADIUS), ("l2", 0.5)])
def test_equals_the_pgd_of_foolbox_from_the_same_start(norm: Norm, eps: float) -> None:
    foolbox = pytest.importorskip("foolbox")
    ep: Any = pytest.importorskip("eagerpy")

    from selfadapt.attacks.pgd import starting_points

    model, images, labels = digits_network()
    attack = PGD(eps=eps, step=eps / 5, steps=20, norm=norm)
    start = starting_points(images, attack, _generator())
    kind: Any = foolbox.attacks.LinfPGD if norm == "linf" else foolbox.attacks.L2PGD

    class FromHere(kind):  # type: ignore[misc]
        def get_random_start(self, x0: Any, epsilon: float) -> Any:
            return ep.astensor(start)

    theirs: Tensor = FromHere(abs_stepsize=attack.step, steps=attack.steps).run(
        foolbox.PyTorchModel(model, bounds=(0, 1)), images, labels, epsilon=eps
    )
    ours = perturb(model, images, labels, attack, _generator())
    fallen, others = (model(moved).argmax(1) != labels for moved in (ours, theirs))
    assert 0.2 < fallen.double().mean() < 0.9
    assert (fallen != others).sum() <= 1
    assert (ours - theirs).abs().mean() < 0.01 * eps


@pytest.mark.parametrize(
    "wrong",
    [
        {"eps": -1},
        {"eps": float("nan")},
        {"steps": -1},
        {"restarts": 0},
        *({"step": x} for x in (-0.1, math.nan, math.inf)),
    ],
)
def test_a_foolish_setting_is_a_clear_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"not a radius|not possible"):
        PGD(**wrong)


@pytest.mark.parametrize("images", [torch.full((2, 1, 8, 8), 255.0), torch.zeros(2, 1, 8, 8, dtype=torch.uint8)])
def test_images_outside_0_and_1_are_refused(images: Tensor) -> None:
    model, _, labels = digits_network()
    with pytest.raises(UserError, match="cannot be attacked"):
        PGD20.outcome(model, images, labels[:2], _generator())
