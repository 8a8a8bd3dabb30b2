"""Wide residual networks for small images (Zagoruyko and Komodakis, 2016): WRN-28-10 and WRN-34-10 of the paper.

A network of depth d has three stages of (d - 4) / 6 blocks with 16 k, 32 k and 64 k channels, k the widening factor.
Batch normalisation and ReLU come before each convolution:

    h   = relu(bn1(x))
    out = conv2( dropout( relu(bn2( conv1(h) )) ) ) + x          or + convShortcut(h) where the shape changes

Modules have the names of the networks published by the TRADES authors, so that their weights can be loaded.

Shapes: B images, C channels.
"""

from typing import cast

import torch
from torch import Tensor, nn

from selfadapt.models.backbone import Backbone, initialise
from selfadapt.models.backbones.resnet import convolution

STEM = 16  # channels


class _Block(nn.Module):
    def __init__(self, channels_in: int, channels_out: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels_in)
        self.conv1 = convolution(channels_in, channels_out, 3, stride)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = convolution(channels_out, channels_out, 3)
        self.convShortcut = (
            convolution(channels_in, channels_out, 1, stride) if stride != 1 or channels_in != channels_out else None
        )

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.bn1(x))
        shortcut = x if self.convShortcut is None else self.convShortcut(h)
        return cast(Tensor, self.conv2(self.dropout(torch.relu(self.bn2(self.conv1(h)))))) + shortcut


class _Stage(nn.Module):
    def __init__(self, blocks: int, channels_in: int, channels_out: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.layer = nn.Sequential(
            _Block(channels_in, channels_out, stride, dropout),
            *(_Block(channels_out, channels_out, 1, dropout) for _ in range(blocks - 1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.layer(x))


class WideResNet(Backbone):
    """`width` is the width of the first stage: 16 times the widening factor."""

    def __init__(self, depth: int, *, width: int = 160, channels: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        blocks, remainder = divmod(depth - 4, 6)
        if remainder or blocks < 1:
            raise ValueError(f"the depth of a wide residual network must be 6 n + 4, such as 28 or 34, not {depth}")
        self.conv1 = convolution(channels, STEM, 3)
        self.block1 = _Stage(blocks, STEM, width, 1, dropout)
        self.block2 = _Stage(blocks, width, 2 * width, 2, dropout)
        self.block3 = _Stage(blocks, 2 * width, 4 * width, 2, dropout)
        self.bn1 = nn.BatchNorm2d(4 * width)
        self.num_features = 4 * width
        initialise(self.modules())

    def forward(self, images_BCHW: Tensor) -> Tensor:
        x = self.block3(self.block2(self.block1(self.conv1(images_BCHW))))
        return torch.relu(self.bn1(x)).mean((2, 3))
