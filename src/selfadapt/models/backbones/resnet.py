"""Residual networks of any depth and width, for small and large images (He et al., 2016).

Modules have torchvision's names, so that weights are interchangeable. Small images keep their size through the stem
(3×3, no pooling); large ones are downsampled by 4 (7×7 with stride 2, then pooling), as on ImageNet.

Shapes: B images, C channels, F features.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from selfadapt.models.backbone import Backbone, initialise


def convolution(channels_in: int, channels_out: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, kernel, stride, padding=kernel // 2, bias=False)


class _Block(nn.Module, ABC):
    """relu(residual(x) + shortcut(x)); the shortcut is a 1×1 convolution where the shape changes."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels_in != channels_out:
            self.downsample = nn.Sequential(
                convolution(channels_in, channels_out, 1, stride), nn.BatchNorm2d(channels_out)
            )

    @abstractmethod
    def residual(self, x: Tensor) -> Tensor: ...

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        return cast(Tensor, self.relu(self.residual(x) + shortcut))


class BasicBlock(_Block):
    """Two 3×3 convolutions."""

    expansion = 1

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__(channels_in, width, stride)
        self.conv1 = convolution(channels_in, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)

    def residual(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        return cast(Tensor, self.bn2(self.conv2(x)))


class Bottleneck(_Block):
    """1×1, 3×3, 1×1, four times as wide at the end."""

    expansion = 4

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__(channels_in, width * 4, stride)
        self.conv1 = convolution(channels_in, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = convolution(width, width * 4, 1)
        self.bn3 = nn.BatchNorm2d(width * 4)

    def residual(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        return cast(Tensor, self.bn3(self.conv3(x)))


class ResNet(Backbone):
    """Stages of blocks; each stage after the first halves the resolution and doubles the width."""

    def __init__(
        self,
        blocks: Sequence[int],
        *,
        width: int = 64,
        block: type[BasicBlock] | type[Bottleneck] = BasicBlock,
        channels: int = 3,
        large_images: bool = False,
    ) -> None:
        super().__init__()
        self.conv1 = convolution(channels, width, *((7, 2) if large_images else (3, 1)))
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1) if large_images else nn.Identity()
        self.layer_names = ["conv1", "bn1", "relu", "maxpool"]  # in order, up to the last map
        channels_in = width
        for stage, depth in enumerate(blocks):
            stage_width = width * 2**stage
            layers = []
            for position in range(depth):
                stride = 2 if stage and not position else 1
                layers.append(block(channels_in, stage_width, stride))
                channels_in = stage_width * block.expansion
            self.layer_names.append(f"layer{stage + 1}")
            self.add_module(self.layer_names[-1], nn.Sequential(*layers))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.num_features = channels_in
        initialise(self.modules())

    def forward(self, images_BCHW: Tensor) -> Tensor:
        x = images_BCHW
        for name in self.layer_names:
            x = self.get_submodule(name)(x)
        return torch.flatten(self.avgpool(x), 1)
