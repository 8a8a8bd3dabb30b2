"""The attack protocol: an attack reports which images it fools the network on.

An attack perturbs an image by at most eps in some norm, within 0..1, until the network misclassifies it. Images that
the network misclassifies without a perturbation are not attacked.

Shapes: B images of a batch, C channels, H by W pixels.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from selfadapt.core.errors import UserError
from selfadapt.core.temporary import temporarily

Norm = Literal["linf", "l2"]

MISCLASSIFIED = 0  # outcome of an image that is misclassified without a perturbation
ROBUST = 127  # outcome of an image that withstands every part; if the k-th part fools the network, the outcome is k


class Attack(Protocol):
    """One or more parts that run in order, each on the images that withstood the parts before it.

    Examples:
        >>> attack = PGD(eps=8 / 255, step=2 / 255, steps=20)
        >>> outcome = attack.outcome(model.eval(), images, labels, torch.Generator().manual_seed(0))
        >>> robust_accuracy = (outcome == ROBUST).float().mean()
    """

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts, in the order in which they run."""
        ...

    @property
    def settings(self) -> Mapping[str, Any]:
        """Hyper-parameters for reports: at least `eps` and `norm`."""
        own: Any = self  # a dataclass
        return asdict(own)

    def outcome(self, model: nn.Module, images_BCHW: Tensor, labels_B: Tensor, generator: torch.Generator) -> Tensor:
        """Attack a batch.

        Args:
            model: Network from images to logits (B×K).
            images_BCHW: Floating-point images within 0..1.
            labels_B: Correct classes.
            generator: Source of all randomness, on the CPU.

        Returns:
            An int64 for each image: MISCLASSIFIED, k if the k-th part (from 1) fooled the network, or ROBUST.

        Raises:
            UserError: If the images are not floating-point values within 0..1.
        """
        ...

    def notes(self, num_classes: int) -> tuple[str, ...]:
        """Return remarks that a reader of the result needs, such as differences from the published attack."""
        return ()


def check_radius(eps: float) -> None:
    if not 0 <= eps < float("inf"):
        raise UserError(f"eps {eps:g} is not a radius; give a number of at least 0, such as 0.031")


def check_inputs(images_BCHW: Tensor) -> None:
    """Raise a UserError unless images are within 0..1: a radius is meaningless on another scale."""
    if not images_BCHW.is_floating_point() or not bool(((images_BCHW >= 0) & (images_BCHW <= 1)).all()):
        raise UserError(
            f"images of type {images_BCHW.dtype} from {images_BCHW.min().item():g} to {images_BCHW.max().item():g} "
            "cannot be attacked; give floats within 0..1 and make the normalisation a layer of the model"
        )


def without_flip(model: nn.Module) -> AbstractContextManager[None]:
    """Disable flip test-time augmentation, which training does not use, within a block."""
    return temporarily([module for module in model.modules() if hasattr(module, "mirror")], "mirror", False)


@torch.no_grad()
def predict_classes(model: nn.Module, images_BCHW: Tensor) -> Tensor:
    classes_B: Tensor = model(images_BCHW).argmax(1)
    return classes_B
