"""Projected gradient descent (Madry et al., 2018), and its single step, FGSM (Goodfellow et al., 2015).

    x'_0     = x, or a random point near it
    x'_(k+1) = project( x'_k + step * direction(gradient of the loss by x'_k) )

The projection is onto the ball of radius eps around x, then onto 0..1. In the maximum norm (linf) the direction is
the sign of the gradient, in the Euclidean norm (l2) the gradient over its length. The loss that rises is one of

    cross-entropy   - log p(x')[y]
    margin          max_(j != y) z_j - z_y                of the logits z of x'
    kl              sum_j p(x)_j log( p(x)_j / p(x')_j )   against the prediction for x itself, as inside TRADES

The random start is `ball` (uniform in it, as in evaluations), `normal` (x + 0.001 N(0, I), as inside TRADES) or `none`,
and is projected as well, so that the network never sees a value outside 0..1 (TRADES' authors project from the first
step on).
An image has fallen if the network is wrong at the last point of its path, as everywhere in the field.

Shapes: B images of a batch, K classes, C channels, H by W pixels.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div

from selfadapt.attacks.attack import (
    STANDS,
    WRONG,
    Norm,
    check_inputs,
    check_radius,
    evaluation_mode,
    predicted,
    without_mirror,
)
from selfadapt.core.errors import UserError

LossName = Literal["cross-entropy", "margin", "kl"]
StartName = Literal["ball", "normal", "none"]
Loss = Callable[[Tensor], Tensor]  # logits (B×K) to a loss for each image (B)

_NORMAL_START = 0.001  # the deviation of the start inside TRADES
_NO_LENGTH = 1e-12  # below it a gradient has no direction


@dataclass(frozen=True, kw_only=True)
class PGD:
    """The paper's evaluation (PGD-20 with eps 0.031 and step 0.007), unless told otherwise."""

    eps: float = 0.031
    step: float = 0.007
    steps: int = 20
    norm: Norm = "linf"
    start: StartName = "ball"
    loss: LossName = "cross-entropy"
    restarts: int = 1  # paths for each image; the worst one counts

    def __post_init__(self) -> None:
        check_radius(self.eps)
        if self.steps < 0 or self.restarts < 1 or not 0 <= self.step < float("inf"):
            raise UserError(
                f"PGD with {self.steps} steps of {self.step:g} and {self.restarts} restarts cannot be; "
                "give steps and step from 0, restarts from 1"
            )

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def name(self) -> str:
        return "fgsm" if self.steps == 1 and self.start == "none" else f"pgd{self.steps}"

    @property
    def settings(self) -> Mapping[str, object]:
        return asdict(self)

    def notes(self, num_classes: int) -> tuple[str, ...]:
        return ("a single step proves little; try pgd20 or autoattack",) if self.steps == 1 else ()

    def outcome(self, model: nn.Module, images_BCHW: Tensor, labels_B: Tensor, generator: torch.Generator) -> Tensor:
        fallen_B, wrong_B, _ = worst_of_restarts(model, images_BCHW, labels_B, self, generator)
        return torch.where(wrong_B, WRONG, torch.where(fallen_B, 1, STANDS))


def fgsm(eps: float = 0.031, *, norm: Norm = "linf", loss: LossName = "cross-entropy") -> PGD:
    """The fast gradient sign method: one step to the border of the ball."""
    return PGD(eps=eps, step=eps, steps=1, norm=norm, start="none", loss=loss)


def perturb(model: nn.Module, images_BCHW: Tensor, labels_B: Tensor, attack: PGD, generator: torch.Generator) -> Tensor:
    """One path for every image, right or wrong: the attack that training makes on its own network.

    The network is in evaluation mode meanwhile, but sees no mirror images, and its parameters get no gradient. It must
    be the bare module: DistributedDataParallel cannot take gradients by the input.
    """
    with evaluation_mode(model), without_mirror(model), torch.enable_grad():
        start_BCHW = starting_points(images_BCHW, attack, generator)
        return ascend(model, images_BCHW, start_BCHW, loss_of(model, images_BCHW, labels_B, attack.loss), attack)


def worst_of_restarts(
    model: nn.Module, images_BCHW: Tensor, labels_B: Tensor, attack: PGD, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Which images fall, which are wrong as they are, and the worst point found for each.

    An image that has fallen, or was wrong, is not tried again. For the others the point of largest loss is kept.
    """
    check_inputs(images_BCHW)
    worst_BCHW = images_BCHW.clone()
    with evaluation_mode(model), torch.enable_grad():
        wrong_B = predicted(model, images_BCHW) != labels_B
        fallen_B = torch.zeros_like(wrong_B)
        highest_B = torch.full(wrong_B.shape, -torch.inf, device=images_BCHW.device)
        for _ in range(attack.restarts):
            tried = (~(wrong_B | fallen_B)).nonzero().flatten()
            if not len(tried):
                break
            clean, labels = images_BCHW[tried], labels_B[tried]
            loss = loss_of(model, clean, labels, attack.loss)
            found = ascend(model, clean, starting_points(clean, attack, generator), loss, attack)
            with torch.no_grad():
                logits = model(found)
                fell, losses = logits.argmax(1) != labels, loss(logits).float()
            better = fell | (losses > highest_B[tried])
            worst_BCHW[tried[better]] = found[better]
            highest_B[tried[better]] = losses[better]
            fallen_B[tried[fell]] = True
    return fallen_B, wrong_B, worst_BCHW


def loss_of(model: nn.Module, images_BCHW: Tensor, labels_B: Tensor, name: LossName) -> Loss:
    """The loss that an attack raises, as a function of the logits of the moved images."""
    if name == "cross-entropy":
        return lambda logits_BK: cross_entropy(logits_BK, labels_B, reduction="none")
    if name == "margin":
        return lambda logits_BK: margin(logits_BK, labels_B)
    with torch.no_grad():
        clean_BK = model(images_BCHW).log_softmax(1)
    return lambda logits_BK: kl_div(logits_BK.log_softmax(1), clean_BK, reduction="none", log_target=True).sum(1)


def margin(logits_BK: Tensor, labels_B: Tensor) -> Tensor:
    """The best other logit less the label's: above zero where the network is wrong."""
    own_B1 = labels_B.unsqueeze(1)
    others_BK = logits_BK.scatter(1, own_B1, -torch.inf)
    return others_BK.amax(1) - logits_BK.gather(1, own_B1).squeeze(1)


def starting_points(images_BCHW: Tensor, attack: PGD, generator: torch.Generator) -> Tensor:
    """Where the path of each image begins. Random numbers are drawn on the CPU, so any device gets the same."""
    if attack.start == "none":
        return images_BCHW.clone()
    shape, device = images_BCHW.shape, images_BCHW.device
    if attack.start == "normal":
        shift = _NORMAL_START * torch.randn(shape, generator=generator)
    elif attack.norm == "linf":
        shift = attack.eps * (2 * torch.rand(shape, generator=generator) - 1)
    else:
        direction = torch.randn(shape, generator=generator)
        radius = torch.rand(shape[0], generator=generator) ** (1 / images_BCHW[0].numel())
        shift = attack.eps * _to_front(radius, direction) * _unit(direction)
    moved_BCHW = images_BCHW + shift.to(device, images_BCHW.dtype)
    return _into_ball(moved_BCHW, images_BCHW, attack)


def ascend(model: nn.Module, images_BCHW: Tensor, start_BCHW: Tensor, loss: Loss, attack: PGD) -> Tensor:
    """The steps themselves, from `start_BCHW`, with the network as it is."""
    moved_BCHW = start_BCHW.detach()
    low_BCHW, high_BCHW = _box(images_BCHW, attack)
    for _ in range(attack.steps):
        moved_BCHW.requires_grad_()
        (slope_BCHW,) = torch.autograd.grad(loss(model(moved_BCHW)).sum(), moved_BCHW)
        with torch.no_grad():
            if attack.norm == "linf":
                moved_BCHW = torch.add(moved_BCHW, slope_BCHW.sign_(), alpha=attack.step)
                moved_BCHW = moved_BCHW.clamp_(low_BCHW, high_BCHW)
            else:
                moved_BCHW = _into_ball(moved_BCHW + attack.step * _unit(slope_BCHW), images_BCHW, attack)
    return moved_BCHW.detach()


def _box(images_BCHW: Tensor, attack: PGD) -> tuple[Tensor, Tensor]:
    """The lowest and the highest values: those of the ball in the maximum norm, within 0..1."""
    return (images_BCHW - attack.eps).clamp_(min=0), (images_BCHW + attack.eps).clamp_(max=1)


def _into_ball(moved_BCHW: Tensor, images_BCHW: Tensor, attack: PGD) -> Tensor:
    if attack.norm == "linf":
        return moved_BCHW.clamp(*_box(images_BCHW, attack))
    shift_BCHW = moved_BCHW - images_BCHW
    shrink_B = (attack.eps / _lengths(shift_BCHW).clamp_min(_NO_LENGTH)).clamp(max=1)
    return (images_BCHW + shift_BCHW * _to_front(shrink_B, shift_BCHW)).clamp(0, 1)


def _unit(vectors_BCHW: Tensor) -> Tensor:
    return vectors_BCHW / _to_front(_lengths(vectors_BCHW).clamp_min(_NO_LENGTH), vectors_BCHW)


def _lengths(vectors_BCHW: Tensor) -> Tensor:
    lengths_B: Tensor = torch.linalg.vector_norm(vectors_BCHW.flatten(1), dim=1)
    return lengths_B


def _to_front(values_B: Tensor, like: Tensor) -> Tensor:
    """A value for each image, shaped so that it multiplies the whole image."""
    return values_B.view(-1, *[1] * (like.dim() - 1))
