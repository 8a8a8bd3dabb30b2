"""Transfer attack: perturb images against another network, without gradients of the attacked one.

Where the gradients of a network are masked, those of another network trained on similar images are still informative,
and the perturbed images may fool both (Papernot et al., 2016).

Shapes: B images of a batch, C channels, H by W pixels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from selfadapt.attacks.attack import MISCLASSIFIED, ROBUST, Attack, check_inputs, predict_classes
from selfadapt.attacks.pgd import PGD, perturb
from selfadapt.models.backbone import evaluation_mode


@dataclass(frozen=True, kw_only=True)
class Transferred(Attack):
    """PGD on `source`, without restarts."""

    attack: PGD
    source: nn.Module
    origin: str  # identifies the source network

    @property
    def parts(self) -> tuple[str, ...]:
        return ("transfer",)

    @property
    def settings(self) -> Mapping[str, Any]:
        return {**self.attack.settings, "source": self.origin}

    def outcome(self, model: nn.Module, images_BCHW: Tensor, labels_B: Tensor, generator: torch.Generator) -> Tensor:
        check_inputs(images_BCHW)
        perturbed_BCHW = perturb(self.source, images_BCHW, labels_B, self.attack, generator)
        with evaluation_mode(model):
            correct_B, withstood_B = (
                predict_classes(model, inputs) == labels_B for inputs in (images_BCHW, perturbed_BCHW)
            )
        return torch.where(correct_B, torch.where(withstood_B, ROBUST, 1), MISCLASSIFIED)
