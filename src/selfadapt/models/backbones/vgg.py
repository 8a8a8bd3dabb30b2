"""VGG-16 with batch normalisation and dropout for small images, used for selective classification (Section 5.3).

Thirteen convolutions in five blocks, each followed by pooling, then one hidden layer. As in the authors' code of SAT
and Deep Gamblers, batch normalisation follows ReLU. Dropout drops whole channels after each convolution except the last
of a block (0.3 in the first block, 0.4 later) and after the last block (0.5), and single features after the hidden
layer (0.5). Pooling rounds up, so that other sizes than 32×32 work: 28×28 and 8×8 also end at 1×1, 64×64 at 2×2. Images
of another size than the network was built for, such as smaller crops, are average-pooled to the same final size.

Shapes: B images, C channels.
"""

from typing import cast

import torch
from torch import Tensor, nn

from selfadapt.models.backbone import Backbone

_BLOCKS = ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3))  # width relative to the first block, number of convolutions
_HIDDEN_DROPOUT = 0.5


class VGG(Backbone):
    def __init__(self, *, channels: int, height: int, width_pixels: int, width: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for number, (widening, convolutions) in enumerate(_BLOCKS):
            for position in range(convolutions):
                size = width * widening
                layers += [nn.Conv2d(channels, size, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(size)]
                if position < convolutions - 1:
                    layers.append(nn.Dropout2d(0.4 if number else 0.3))
                channels = size
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
            height, width_pixels = -(-height // 2), -(-width_pixels // 2)
        self.num_features = channels
        self.convolutions = nn.Sequential(*layers, nn.Dropout2d(_HIDDEN_DROPOUT))
        self.pool = nn.AdaptiveAvgPool2d((height, width_pixels))
        self.hidden = nn.Sequential(
            nn.Linear(channels * height * width_pixels, channels),
            nn.ReLU(),
            nn.BatchNorm1d(channels),
            nn.Dropout(_HIDDEN_DROPOUT),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(cast(Tensor, module.bias))
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.01)
                nn.init.zeros_(module.bias)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        return cast(Tensor, self.hidden(torch.flatten(self.pool(self.convolutions(images_BCHW)), 1)))
