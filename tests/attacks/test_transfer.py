"""Transfer attacks: images perturbed against another network."""

from dataclasses import replace

import torch
from torch import nn

from attacked import RADIUS, Masked, digits_network
from selfadapt.attacks.attack import MISCLASSIFIED, ROBUST
from selfadapt.attacks.pgd import PGD
from selfadapt.attacks.transfer import Transferred

ATTACK = PGD(eps=RADIUS, step=RADIUS / 4, start="none")


def _transferred(source: nn.Module, attack: PGD = ATTACK) -> Transferred:
    return Transferred(attack=attack, source=source, origin="another")


def test_made_on_the_network_itself_it_is_pgd() -> None:
    model, images, labels = digits_network()
    outcomes = [attack.outcome(model, images, labels, torch.Generator()) for attack in (_transferred(model), ATTACK)]
    assert torch.equal(*outcomes)
    assert {MISCLASSIFIED, 1, ROBUST} == set(outcomes[0].tolist())
    assert torch.equal(outcomes[0], _transferred(model.train()).outcome(model, images, labels, torch.Generator()))
    assert all(module.training for module in model.modules())


def test_a_network_whose_gradients_are_masked_falls_to_images_moved_against_an_honest_one() -> None:
    honest, images, labels = digits_network()
    masked = Masked(honest, steps=8).eval()
    own = ATTACK.outcome(masked, images, labels, torch.Generator())
    by_transfer = _transferred(honest).outcome(masked, images, labels, torch.Generator())
    assert torch.equal(own == MISCLASSIFIED, by_transfer == MISCLASSIFIED)
    assert (own == 1).sum() == 0
    assert (by_transfer == 1).sum() > 50


def test_its_settings_tell_from_which_network_it_comes() -> None:
    one = _transferred(nn.Identity())
    assert one.settings != replace(one, origin="a third").settings
    assert one.settings["eps"] == RADIUS
    assert one.parts == ("transfer",)
