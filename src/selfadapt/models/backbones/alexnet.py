"""AlexNet with batch normalisation, for small and large images (Krizhevsky et al., 2012).

Five convolutions. Large images use the published strides; small images keep their size through the stem and are
downsampled three times. The features are averaged over the last map, so that any image size works.

Shapes: B images, C channels.
"""

from typing import cast

import torch
from torch import Tensor, nn

from selfadapt.models.backbone import Backbone, initialise


class AlexNet(Backbone):
    def __init__(self, *, channels: int = 3, width: int = 64, large_images: bool = False) -> None:
        super().__init__()
        widths = (width, 3 * width, 6 * width, 4 * width, 4 * width)
        kernels = ((11, 4), (5, 1)) if large_images else ((3, 1), (3, 1))
        layers: list[nn.Module] = []
        for number, size in enumerate(widths):
            kernel, stride = kernels[number] if number < len(kernels) else (3, 1)
            layers += [
                nn.Conv2d(channels, size, kernel, stride, padding=kernel // 2, bias=False),
                nn.BatchNorm2d(size),
                nn.ReLU(inplace=True),
            ]
            if number in (0, 1, 4):
                layers.append(nn.MaxPool2d(3, 2, padding=1))
            channels = size
        self.convolutions = nn.Sequential(*layers)
        self.num_features = channels
        initialise(self.modules())

    def forward(self, images_BCHW: Tensor) -> Tensor:
        return torch.flatten(nn.functional.adaptive_avg_pool2d(cast(Tensor, self.convolutions(images_BCHW)), 1), 1)
