"""What an attack is to the rest of the program: it tells which images fall, and to which of its parts.

An attack moves an image, at most by eps in some norm and never out of 0..1, until the network takes it for another
class. Images that the network gets wrong as they are need no attack and are left out of it.

Shapes: B images of a batch, C channels, H by W pixels.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from selfadapt.core.errors import UserError

Norm = Literal["linf", "l2"]

WRONG = 0  # the outcome of an image that is misclassified as it is; that of the k-th part of an attack is k, from 1
STANDS = 127  # the outcome of an image that no part brought down


class Attack(Protocol):
    """One or several parts, each of which tries the images that still stand."""

    @property
    def parts(self) -> tuple[str, ...]: ...

    @property
    def settings(self) -> Mapping[str, Any]:
        """What a report says of it: its radius, its steps and so on."""
        ...

    def outcome(self, model: nn.Module, images_BCHW: Tensor, labels_B: Tensor, generator: torch.Generator) -> Tensor:
        """WRONG, the number of the part that an image fell to, or STANDS, for each image (B, int64)."""
        ...

    def notes(self, num_classes: int) -> tuple[str, ...]:
        """What a reader of the result must know, such as where it differs from the published attack."""
        ...


def check_radius(eps: float) -> None:
    if not 0 <= eps < float("inf"):
        raise UserError(f"eps {eps:g} is not a radius; give a number from 0, such as 0.031")


def check_inputs(images_BCHW: Tensor) -> None:
    """A radius means nothing unless the images are what the model takes, from 0 to 1."""
    if not images_BCHW.is_floating_point() or not bool(((images_BCHW >= 0) & (images_BCHW <= 1)).all()):
        raise UserError(
            f"images of type {images_BCHW.dtype} from {images_BCHW.min().item():g} to {images_BCHW.max().item():g} "
            "cannot be attacked; give floats within 0..1 and make the normalisation a layer of the model"
        )


@contextmanager
def without_mirror(model: nn.Module) -> Iterator[None]:
    """The network as training sees it: without the mean over an image and its mirror image."""
    mirrored: list[Any] = [module for module in model.modules() if getattr(module, "mirror", False)]
    for module in mirrored:
        module.mirror = False
    try:
        yield
    finally:
        for module in mirrored:
            module.mirror = True


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Every module in evaluation mode; afterwards each is as it was, also where they differed."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@torch.no_grad()
def predicted(model: nn.Module, images_BCHW: Tensor) -> Tensor:
    classes_B: Tensor = model(images_BCHW).argmax(1)
    return classes_B
