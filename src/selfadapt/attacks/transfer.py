"""Images moved against another network and shown to this one: an attack that needs none of its gradients.

Where gradients of a network lead nowhere, those of another one, trained on the same kind of images, still lead
somewhere, and the images that they make may harm both (Papernot et al., 2016).

Shapes: B images of a batch, C channels, H by W pixels.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from selfadapt.attacks.attack import STANDS, WRONG, check_inputs, evaluation_mode, predicted
from selfadapt.attacks.pgd import PGD, perturb


@dataclass(frozen=True, kw_only=True)
class Transferred:
    """PGD on `source`; one path for each image, whatever the attack says of restarts."""

    attack: PGD
    source: nn.Module
    origin: str  # what tells the source from other networks

    @property
    def parts(self) -> tuple[str, ...]:
        return ("transfer",)

    @property
    def settings(self) -> Mapping[str, object]:
        return {**self.attack.settings, "source": self.origin}

    def notes(self, num_classes: int) -> tuple[str, ...]:
        return ()

    def outcome(self, model: nn.Module, images_BCHW: Tensor, labels_B: Tensor, generator: torch.Generator) -> Tensor:
        check_inputs(images_BCHW)
        moved_BCHW = perturb(self.source, images_BCHW, labels_B, self.attack, generator)
        with evaluation_mode(model):
            wrong_B, fallen_B = (predicted(model, seen) != labels_B for seen in (images_BCHW, moved_BCHW))
        return torch.where(wrong_B, WRONG, torch.where(fallen_B, 1, STANDS))
