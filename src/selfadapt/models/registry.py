"""Backbones by name, for the command line and for runs."""

import math

from torch import nn

from selfadapt.core.errors import UserError, check_least
from selfadapt.data.inputs import InputSpec
from selfadapt.models.backbone import Backbone, WrappedBackbone
from selfadapt.models.backbones.alexnet import AlexNet
from selfadapt.models.backbones.mlp import MLP
from selfadapt.models.backbones.resnet import BasicBlock, Bottleneck, ResNet
from selfadapt.models.backbones.vgg import VGG
from selfadapt.models.backbones.whitened import WhitenedNet
from selfadapt.models.backbones.wideresnet import WideResNet

LARGE_IMAGE = 96  # pixels on the shorter side from which a residual network starts with a stride and pooling

_RESNETS: dict[str, tuple[tuple[int, ...], type[BasicBlock] | type[Bottleneck], int]] = {
    "resnet-small": ((1, 1, 1), BasicBlock, 16),
    "resnet18": ((2, 2, 2, 2), BasicBlock, 64),
    "resnet34": ((3, 4, 6, 3), BasicBlock, 64),
    "resnet50": ((3, 4, 6, 3), Bottleneck, 64),
    "resnet101": ((3, 4, 23, 3), Bottleneck, 64),
}
_WIDE = {"wrn-28-10": 28, "wrn-34-10": 34}  # depths
NAMES = (*_RESNETS, *_WIDE, "vgg16", "alexnet", "whitened", "mlp", "linear")
FIXED_SIZE = ("mlp",)  # networks that take images of one size only


def backbone(name: str, spec: InputSpec, *, width: int | None = None) -> Backbone:
    """Build a network for these inputs; `width` overrides the width of its first stage or layer."""
    check_least({"--width": width})
    if name not in NAMES:
        raise UserError(f"--model {name!r} is not known; choose one of {', '.join(NAMES)}")
    if name == "mlp":
        return MLP(math.prod(spec.shape), width=width or 256, depth=2 if spec.kind == "images" else 1)
    if (spec.kind == "vectors") != (name == "linear"):
        takes, these = ("vectors", "images") if name == "linear" else ("images", "vectors")
        raise UserError(f"--model {name} takes {takes}, but the inputs are {these}; choose another, such as mlp")
    if name == "linear":
        return WrappedBackbone(nn.Identity(), spec.shape[0])  # so that a head on top is a linear classifier
    channels, height, width_pixels = spec.shape
    if name == "vgg16":
        return VGG(channels=channels, height=height, width_pixels=width_pixels, width=width or 64)
    if name == "whitened":
        if min(height, width_pixels) < 2:
            raise UserError("--model whitened needs images of at least 2×2 pixels; choose another")
        return WhitenedNet(channels=channels, width=width or 32)
    if name in _WIDE:
        return WideResNet(_WIDE[name], width=width or 160, channels=channels)
    large = min(height, width_pixels) >= LARGE_IMAGE
    if name == "alexnet":
        return AlexNet(channels=channels, width=width or 64, large_images=large)
    blocks, block, standard_width = _RESNETS[name]
    return ResNet(blocks, width=width or standard_width, block=block, channels=channels, large_images=large)
