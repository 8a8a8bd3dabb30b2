"""Wide residual networks for small images (Zagoruyko and Komodakis, 2016): WRN-28-10 and WRN-34-10 of the paper.

A network of depth d has three stages of (d - 4) / 6 blocks with 16 k, 32 k and 64 k channels, k the widening factor.
Batch normalisation and ReLU come before each convolution:

    h   = relu(bn1(x))
    out = conv2( dropout( relu(bn2( conv1(h) )) ) ) + x          or + convShortcut(h) where the shape changes

The modules carry the names of the networks that TRADES' authors published, so that such weights can be loaded.

Shapes: B images, C channels.
"""

from typing import cast

import torch
from torch import Tensor, nn

from selfadapt.models.heads import Backbone

STEM = 16  # channels


def _convolution(channels_in: int, channels_out: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, kernel, stride, padding=kernel // 2, bias=False)


class _Block(nn.Module):
    def __init__(self, channels_in: int, channels_out: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels_in)
        self.conv1 = _convolution(channels_in, channels_out, 3, stride)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = _convolution(channels_out, channels_out, 3)
        self.convShortcut = (
            _convolution(channels_in, channels_out, 1, stride) if stride != 1 or channels_in != channels_out else None
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
    """`width` is that of the first stage: 16 times the widening factor."""

    def __init__(self, depth: int, *, width: int = 160, channels: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        blocks, left = divmod(depth - 4, 6)
        if left or blocks < 1:
            raise ValueError(f"a wide residual network cannot have depth {depth}; give 6 n + 4, such as 28 or 34")
        self.conv1 = _convolution(channels, STEM, 3)
        self.block1 = _Stage(blocks, STEM, width, 1, dropout)
        self.block2 = _Stage(blocks, width, 2 * width, 2, dropout)
        self.block3 = _Stage(blocks, 2 * width, 4 * width, 2, dropout)
        self.bn1 = nn.BatchNorm2d(4 * width)
        self.num_features = 4 * width
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images_BCHW: Tensor) -> Tensor:
        x = self.block3(self.block2(self.block1(self.conv1(images_BCHW))))
        return torch.relu(self.bn1(x)).mean((2, 3))
