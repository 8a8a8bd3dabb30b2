"""AutoAttack (Croce and Hein, 2020), as a wrapper of pyautoattack, which contains the authors' implementation.

Four parts run in order, each on the images that withstood the parts before it:

    apgd-ce   PGD with an adaptive step size, on cross entropy
    apgd-t    the same on the targeted DLR loss, for the 9 most likely other classes
    fab-t     the nearest point across the decision boundary to each of those classes
    square    random squares, without gradients

With fewer than ten classes, all K-1 other classes are targets. The targeted DLR loss divides by differences of the
four largest logits; with two or three classes the margin z_target - z_y replaces it.

Shapes: B images of a batch, K classes, C channels, H by W pixels.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from selfadapt.attacks.attack import MISCLASSIFIED, ROBUST, Attack, Norm, check_inputs, check_radius, predict_classes
from selfadapt.core.device import keeping_random_states
from selfadapt.core.errors import UserError
from selfadapt.core.temporary import temporarily
from selfadapt.models.backbone import evaluation_mode

STEPS, QUERIES, TARGETS = 100, 5000, 9  # the standard version
_NORMS = {"linf": "Linf", "l2": "L2"}
_MIN_CLASSES_FOR_DLR = 4
_ROUNDING = 1e-5  # rounding of the pixels may exceed the ball

# Zero gradients, which the package warns about, are normal far from the decision boundary.
_SILENT = SimpleNamespace(warning=lambda message: None)
_MISSING = "AutoAttack needs the extra: pip install 'selfadapt[attack]'"

Part = Callable[[Tensor, Tensor], Tensor]  # from images and labels to perturbed images


@dataclass(frozen=True, kw_only=True)
class AutoAttack(Attack):
    """AutoAttack in its standard version by default.

    Args:
        eps: Radius of the ball.
        norm: `linf` or `l2`.
        steps: Steps of apgd and fab.
        queries: Queries of square.
        parts: Names of the parts to run.
    """

    eps: float = 0.031
    norm: Norm = "linf"
    steps: int = STEPS
    queries: int = QUERIES
    parts: tuple[str, ...] = ("apgd-ce", "apgd-t", "fab-t", "square")

    def __post_init__(self) -> None:
        if find_spec("pyautoattack") is None:
            raise UserError(_MISSING)
        check_radius(self.eps)
        if self.eps == 0 or self.steps < 1 or self.queries < 1:
            raise UserError(
                f"AutoAttack with eps {self.eps:g}, {self.steps} steps and {self.queries} queries is not possible; "
                "each must be above 0"
            )

    def notes(self, num_classes: int) -> tuple[str, ...]:
        notes = []
        if (self.steps, self.queries, self.parts) != (STEPS, QUERIES, AutoAttack.parts):
            notes.append(
                f"not the standard AutoAttack: {', '.join(self.parts)} with {self.steps} steps and {self.queries} "
                "queries; its figures are not comparable with published ones"
            )
        if num_classes < _MIN_CLASSES_FOR_DLR:
            notes.append(f"with {num_classes} classes the DLR loss is undefined; apgd-t uses the margin of the logits")
        if num_classes <= TARGETS:
            notes.append(
                f"with {num_classes} classes the targeted attacks have {num_classes - 1} targets, not {TARGETS}"
            )
        return tuple(notes)

    def outcome(self, model: nn.Module, images_BCHW: Tensor, labels_B: Tensor, generator: torch.Generator) -> Tensor:
        check_inputs(images_BCHW)
        seed = int(torch.randint(2**31, (1,), generator=generator))
        # The package seeds the global generators.
        with evaluation_mode(model), _without_gradients(model), keeping_random_states(images_BCHW.device):
            correct_B = predict_classes(model, images_BCHW) == labels_B
            outcome_B = torch.where(correct_B, ROBUST, MISCLASSIFIED)
            for number, name in enumerate(self.parts, start=1):
                left = (outcome_B == ROBUST).nonzero().flatten()
                if not len(left):
                    break
                images, labels = images_BCHW[left].contiguous(), labels_B[left]
                perturbed = self._part(name, model, images, seed)(images, labels)
                self._check_ball(name, perturbed, images)
                outcome_B[left[predict_classes(model, perturbed) != labels]] = number
        return outcome_B

    def _part(self, name: str, model: nn.Module, images_BCHW: Tensor, seed: int) -> Part:
        """Build one of the package's attacks on this model."""
        import pyautoattack.autopgd_base as autopgd
        from pyautoattack.fab_pt import FABAttack_PT
        from pyautoattack.square import SquareAttack

        with torch.no_grad():
            num_classes = model(images_BCHW[:1]).shape[1]
        device, norm, targets = images_BCHW.device, _NORMS[self.norm], min(TARGETS, num_classes - 1)
        common: dict[str, Any] = {"norm": norm, "eps": self.eps, "seed": seed, "device": device, "verbose": False}
        if name == "apgd-ce":
            attack = autopgd.APGDAttack(model, n_iter=self.steps, **common)
        elif name == "apgd-t":
            attack = autopgd.APGDAttack_targeted(
                model, n_iter=self.steps, n_target_classes=targets, logger=_SILENT, **common
            )
            if num_classes < _MIN_CLASSES_FOR_DLR:
                attack.dlr_loss_targeted = lambda logits, labels: _targeted_margin(logits, labels, attack.y_target)
        elif name == "fab-t":
            attack = FABAttack_PT(model, n_iter=self.steps, targeted=True, n_target_classes=targets, **common)
        elif name == "square":
            attack = SquareAttack(model, n_queries=self.queries, p_init=0.8, resc_schedule=False, **common)
        else:
            raise UserError(f"AutoAttack part {name!r} is not known; choose from {', '.join(AutoAttack.parts)}")
        perturb: Part = attack.perturb
        return perturb

    def _check_ball(self, name: str, perturbed_BCHW: Tensor, images_BCHW: Tensor) -> None:
        """Raise if the attack exceeded its radius, which would make a robust network look weak."""
        difference = (perturbed_BCHW - images_BCHW).flatten(1)
        distance = (difference.abs().amax() if self.norm == "linf" else difference.norm(dim=1).amax()).item()
        if not distance <= self.eps + _ROUNDING * max(1, self.eps) or bool(
            ((perturbed_BCHW < 0) | (perturbed_BCHW > 1)).any()
        ):
            raise RuntimeError(f"{name} of pyautoattack exceeded the ball: distance {distance:g}, eps {self.eps:g}")


def _targeted_margin(logits_BK: Tensor, labels_B: Tensor, targets_B: Tensor) -> Tensor:
    target_B, label_B = (logits_BK.gather(1, index_B.unsqueeze(1)).squeeze(1) for index_B in (targets_B, labels_B))
    return target_B - label_B


def _without_gradients(model: nn.Module) -> AbstractContextManager[None]:
    """Disable gradients of the parameters: the package calls `backward`, which would accumulate them."""
    return temporarily(model.parameters(), "requires_grad", False)
