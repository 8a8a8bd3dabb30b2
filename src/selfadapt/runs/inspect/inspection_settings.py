"""Settings of attacks, corruptions and embeddings, from which the options of their commands follow.

This module does not import torch, so that help is quick.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfadapt.core.settings import check_settings, setting
from selfadapt.runs.config.sections import PHOTOS

if TYPE_CHECKING:
    from selfadapt.attacks.attack import Attack

_OF_ATTACK = ("norm", "eps", "steps", "step", "restarts", "loss", "queries")


@dataclass(frozen=True, kw_only=True)
class AttackSettings:
    """The attack on a run, and the images that are attacked."""

    name: str = setting(
        "pgd20",
        "Attack: fgsm, pgd20 (or another number of steps), autoattack, or a part of it: apgd-ce, apgd-t, fab-t, square",
        option="--with",
    )
    eps: float | None = setting(None, "Radius", unset="0.031 for linf, 0.5 for l2")
    norm: str = setting("linf", "Norm of the radius: linf or l2")
    steps: int | None = setting(None, "Number of steps", unset="from the name, or as in AutoAttack")
    step: float | None = setting(None, "Step size of PGD", unset="0.23 of the radius, larger for fewer than five steps")
    restarts: int | None = setting(None, "Random restarts of PGD; the worst one counts", unset="1")
    loss: str | None = setting(None, "Loss that PGD maximises: cross-entropy or margin", unset="cross-entropy")
    queries: int | None = setting(None, "Queries of the square attack", unset="5000")
    images: int | None = setting(None, "Number of test images, sampled by class", unset="all")
    seed: int = setting(0, "Seed of the sample and of the random starts")
    batch_size: int | None = setting(None, "Images per batch", unset="128, or 16 from 96 pixels on")
    at: str = setting(
        "last",
        "Checkpoint: last, first or best. Adversarial training keeps the first and the best epoch of its robust "
        "accuracy on validation images",
    )
    checks: bool = setting(True, "Check some of the images for gradient masking")

    def attack(self) -> "Attack":
        """The attack with these settings.

        Raises:
            UserError: If it is unknown, or a setting does not suit it.
        """
        from selfadapt.attacks.by_name import named_attack

        return named_attack(self.name, **{word: getattr(self, word) for word in _OF_ATTACK})


@dataclass(frozen=True, kw_only=True)
class ShiftSettings:
    """The corruptions, and the images that are corrupted."""

    data: str | None = setting(None, "Folder with the published arrays of CIFAR-10-C", unset="corrupt the test images")
    levels: str | None = setting(None, "Severity levels: cifar or imagenet", unset="imagenet from 96 pixels on")
    images: int | None = setting(None, "Number of test images, sampled by class", unset="all")
    seed: int = setting(0, "Seed of the sample and of the corruptions")


@dataclass(frozen=True, kw_only=True)
class EmbedSettings:
    """The network, how it reads images, and the number of images of a shard."""

    model: str = setting(PHOTOS, "Any timm model")
    weights: str = setting("pretrained", "Initial weights: pretrained, none, or a .safetensors or .pth file")
    image_size: int | None = setting(
        None, "Resize and crop images to a square of this size", unset="the input size of the model"
    )
    shard_size: int = setting(8192, "Images per shard, for a folder", least=1)

    def __post_init__(self) -> None:
        check_settings(self)
