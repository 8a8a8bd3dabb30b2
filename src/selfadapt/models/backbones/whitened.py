"""A convolutional network that learns small images in a few epochs: a few wide layers after a whitening layer.

    whitening     2×2 patches projected onto the principal axes of the training images' patches, each axis divided by
                  its standard deviation, and the negated projections; set once before training and then fixed
    three groups  convolution, max-pooling, batch normalisation, GELU, convolution, batch normalisation, GELU
    features      the largest value of each channel, divided by 9

The architecture follows the fastest recipes for CIFAR10 on a GPU (Page, How to Train Your ResNet, 2018; Jordan, 94% on
CIFAR-10 in 3.29 Seconds, 2024), with widths for two CPU cores. Batch normalisation has biases but no scales; the biases
have a higher learning rate. Convolutions are initialised to the identity as far as their shapes allow.

Shapes: B images, C channels, H by W pixels.
"""

from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from selfadapt.models.backbone import Backbone

_WIDENING = (1, 4, 4)  # of the groups, relative to `width`
_PATCH = 2
_VARIANCE_OFFSET = 5e-4  # added to the variance of each axis
_FEATURE_SCALE = 1 / 9
_BIAS_LR_SCALE = 16.0


class WhitenedNet(Backbone):
    """The network. `see` sets the whitening layer."""

    examples = 5_000

    def __init__(self, *, channels: int, width: int = 32) -> None:
        super().__init__()
        patch = channels * _PATCH**2
        self.whitening = _Whitening(channels, 2 * patch, _PATCH)
        self.whitening.weight.requires_grad_(False)
        nn.init.zeros_(cast(Tensor, self.whitening.bias))
        widths = [2 * patch, *(width * widening for widening in _WIDENING)]
        self.groups = nn.Sequential(*(_group(*pair) for pair in pairwise(widths)))
        self.act, self.pool = nn.GELU(), nn.AdaptiveMaxPool2d(1)
        self.num_features = widths[-1]

    @torch.no_grad()
    def see(self, images_BCHW: Tensor) -> None:
        patches = images_BCHW.unfold(2, _PATCH, 1).unfold(3, _PATCH, 1)  # B×C×H×W×2×2
        rows = patches.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(0, 2).double()
        variance, axes = torch.linalg.eigh(rows.T @ rows / len(rows))
        filters = (axes / (variance + _VARIANCE_OFFSET).sqrt()).T.reshape(-1, *self.whitening.weight.shape[1:])
        self.whitening.weight.copy_(torch.cat([filters, -filters]))

    def forward(self, images_BCHW: Tensor) -> Tensor:
        x = self.groups(self.act(self.whitening(images_BCHW)))
        return cast(Tensor, self.pool(x).flatten(1) * _FEATURE_SCALE)


def _group(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        _convolution(channels_in, channels_out), _Pooling(2), _BiasNorm(channels_out), nn.GELU(),
        _convolution(channels_out, channels_out), _BiasNorm(channels_out), nn.GELU(),
    )  # fmt: skip


def _convolution(channels_in: int, channels_out: int) -> nn.Conv2d:
    layer = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
    nn.init.dirac_(layer.weight[: min(channels_in, channels_out)])
    return layer


class _Pooling(nn.MaxPool2d):
    """Max-pooling that leaves images of one row or column unchanged."""

    def forward(self, input: Tensor) -> Tensor:
        return input if min(input.shape[2:]) < 2 else super().forward(input)


class _Whitening(nn.Conv2d):
    lr_scale = _BIAS_LR_SCALE


class _BiasNorm(nn.BatchNorm2d):
    """Batch normalisation without scales, which convolutions already have."""

    lr_scale = _BIAS_LR_SCALE

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.weight.requires_grad_(False)
