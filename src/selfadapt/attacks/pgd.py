"""Projected gradient descent (Madry et al., 2018), and its one-step version, FGSM (Goodfellow et al., 2015).

    x'_0     = x, or a random point near it
    x'_(k+1) = project( x'_k + step * direction(gradient of the loss at x'_k) )

The projection is onto the ball of radius eps around x, then onto 0..1. In the maximum norm (linf) the direction is
the sign of the gradient, in the Euclidean norm (l2) the normalised gradient. The attack maximises one of the losses

    cross-entropy   - log p(x')[y]
    margin          max_(j != y) z_j - z_y                of the logits z of x'
    kl              sum_j p(x)_j log( p(x)_j / p(x')_j )   against the prediction for x, as in TRADES

The start is `ball` (uniform in the ball, as in evaluations), `normal` (x + 0.001 N(0, I), as in TRADES) or `none`. It
is projected too, so that the network never gets a value outside 0..1; the TRADES authors project only after each step.
The attack succeeds if the network misclassifies the last iterate, as is usual.

Shapes: B images of a batch, K classes, C channels, H by W pixels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div

from selfadapt.attacks.attack import (
    MISCLASSIFIED,
    ROBUST,
    Attack,
    Norm,
    check_inputs,
    check_radius,
    predict_classes,
    without_flip,
)
from selfadapt.core.device import to_device
from selfadapt.core.errors import UserError
from selfadapt.models.backbone import evaluation_mode

LossName = Literal["cross-entropy", "margin", "kl"]
StartName = Literal["ball", "normal", "none"]
Loss = Callable[[Tensor], Tensor]  # from logits (B×K) to a loss for each image (B)

_NORMAL_START = 0.001  # standard deviation, as in TRADES
_MIN_NORM = 1e-12  # avoids division by zero


@dataclass(frozen=True, kw_only=True)
class PGD(Attack):
    """Projected gradient descent. The defaults are the paper's evaluation: PGD-20 with eps 0.031 and step 0.007.

    Args:
        eps: Radius of the ball.
        step: Step size.
        steps: Number of steps.
        norm: `linf` or `l2`.
        start: `ball`, `normal` or `none`.
        loss: `cross-entropy`, `margin` or `kl`.
        restarts: Number of attempts for each image; those that are already misclassified are not attacked again.
    """

    eps: float = 0.031
    step: float = 0.007
    steps: int = 20
    norm: Norm = "linf"
    start: StartName = "ball"
    loss: LossName = "cross-entropy"
    restarts: int = 1

    def __post_init__(self) -> None:
        check_radius(self.eps)
        if self.steps < 0 or self.restarts < 1 or not 0 <= self.step < float("inf"):
            raise UserError(
                f"PGD with {self.steps} steps of {self.step:g} and {self.restarts} restarts is not possible; "
                "give steps and step of at least 0, restarts of at least 1"
            )

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def name(self) -> str:
        return "fgsm" if self.steps == 1 and self.start == "none" else f"pgd{self.steps}"

    def notes(self, num_classes: int) -> tuple[str, ...]:
        return ("a single step is a weak attack; try pgd20 or autoattack",) if self.steps == 1 else ()

    def outcome(self, model: nn.Module, images_BCHW: Tensor, labels_B: Tensor, generator: torch.Generator) -> Tensor:
        check_inputs(images_BCHW)
        with evaluation_mode(model), torch.enable_grad():
            correct_B = predict_classes(model, images_BCHW) == labels_B
            outcome_B = torch.where(correct_B, ROBUST, MISCLASSIFIED)
            for _ in range(self.restarts):
                left = (outcome_B == ROBUST).nonzero().flatten()
                if not len(left):
                    break
                images, labels = images_BCHW[left], labels_B[left]
                loss = loss_of(model, images, labels, self.loss)
                perturbed = ascend(model, images, starting_points(images, self, generator), loss, self)
                outcome_B[left[predict_classes(model, perturbed) != labels]] = 1
        return outcome_B


def fgsm(eps: float = 0.031, *, norm: Norm = "linf", loss: LossName = "cross-entropy") -> PGD:
    """The fast gradient sign method: one step to the boundary of the ball."""
    return PGD(eps=eps, step=eps, steps=1, norm=norm, start="none", loss=loss)


def perturb(model: nn.Module, images_BCHW: Tensor, labels_B: Tensor, attack: PGD, generator: torch.Generator) -> Tensor:
    """Attack every image once, misclassified or not, as adversarial training does.

    The network is temporarily in evaluation mode, without flip test-time augmentation, and its parameters get no
    gradient. Pass the unwrapped module: DistributedDataParallel does not support gradients of the input.
    """
    with evaluation_mode(model), without_flip(model), torch.enable_grad():
        start_BCHW = starting_points(images_BCHW, attack, generator)
        return ascend(model, images_BCHW, start_BCHW, loss_of(model, images_BCHW, labels_B, attack.loss), attack)


def loss_of(model: nn.Module, images_BCHW: Tensor, labels_B: Tensor, name: LossName) -> Loss:
    """Return the loss to maximise, as a function of the logits of the perturbed images."""
    if name == "cross-entropy":
        return lambda logits_BK: cross_entropy(logits_BK, labels_B, reduction="none")
    if name == "margin":
        return lambda logits_BK: margin(logits_BK, labels_B)
    with torch.no_grad():
        clean_BK = model(images_BCHW).log_softmax(1)
    return lambda logits_BK: kl_div(logits_BK.log_softmax(1), clean_BK, reduction="none", log_target=True).sum(1)


def margin(logits_BK: Tensor, labels_B: Tensor) -> Tensor:
    """Return the best other logit minus the label's: positive where the network is wrong."""
    labels_B1 = labels_B.unsqueeze(1)
    others_BK = logits_BK.scatter(1, labels_B1, -torch.inf)
    return others_BK.amax(1) - logits_BK.gather(1, labels_B1).squeeze(1)


def starting_points(images_BCHW: Tensor, attack: PGD, generator: torch.Generator) -> Tensor:
    """Draw the initial iterate of each image. Numbers are drawn on the CPU, so that all devices get the same."""
    if attack.start == "none":
        return images_BCHW.clone()
    shape = images_BCHW.shape
    if attack.start == "normal":
        shift = _NORMAL_START * torch.randn(shape, generator=generator)
    elif attack.norm == "linf":
        shift = attack.eps * (2 * torch.rand(shape, generator=generator) - 1)
    else:
        direction = torch.randn(shape, generator=generator)
        radius = torch.rand(shape[0], generator=generator) ** (1 / images_BCHW[0].numel())
        shift = attack.eps * _broadcast(radius, direction) * _normalised(direction)
    perturbed_BCHW = images_BCHW + to_device(shift.to(images_BCHW.dtype), images_BCHW.device)
    return _project(perturbed_BCHW, images_BCHW, attack)


def ascend(model: nn.Module, images_BCHW: Tensor, start_BCHW: Tensor, loss: Loss, attack: PGD) -> Tensor:
    """Take the steps from `start_BCHW`."""
    perturbed_BCHW = start_BCHW.detach()
    low_BCHW, high_BCHW = _bounds(images_BCHW, attack)
    for _ in range(attack.steps):
        perturbed_BCHW.requires_grad_()
        (gradient_BCHW,) = torch.autograd.grad(loss(model(perturbed_BCHW)).sum(), perturbed_BCHW)
        with torch.no_grad():
            if attack.norm == "linf":
                perturbed_BCHW = torch.add(perturbed_BCHW, gradient_BCHW.sign_(), alpha=attack.step)
                perturbed_BCHW = perturbed_BCHW.clamp_(low_BCHW, high_BCHW)
            else:
                perturbed_BCHW = _project(
                    perturbed_BCHW + attack.step * _normalised(gradient_BCHW), images_BCHW, attack
                )
    return perturbed_BCHW.detach()


def _bounds(images_BCHW: Tensor, attack: PGD) -> tuple[Tensor, Tensor]:
    """Return the bounds of the ball in the maximum norm, intersected with 0..1."""
    return (images_BCHW - attack.eps).clamp_(min=0), (images_BCHW + attack.eps).clamp_(max=1)


def _project(perturbed_BCHW: Tensor, images_BCHW: Tensor, attack: PGD) -> Tensor:
    if attack.norm == "linf":
        return perturbed_BCHW.clamp(*_bounds(images_BCHW, attack))
    shift_BCHW = perturbed_BCHW - images_BCHW
    scale_B = (attack.eps / _norms(shift_BCHW).clamp_min(_MIN_NORM)).clamp(max=1)
    return (images_BCHW + shift_BCHW * _broadcast(scale_B, shift_BCHW)).clamp(0, 1)


def _normalised(vectors_BCHW: Tensor) -> Tensor:
    return vectors_BCHW / _broadcast(_norms(vectors_BCHW).clamp_min(_MIN_NORM), vectors_BCHW)


def _norms(vectors_BCHW: Tensor) -> Tensor:
    norms_B: Tensor = torch.linalg.vector_norm(vectors_BCHW.flatten(1), dim=1)
    return norms_B


def _broadcast(values_B: Tensor, like: Tensor) -> Tensor:
    """Reshape one value per image to broadcast over the images."""
    return values_B.view(-1, *[1] * (like.dim() - 1))
