"""A multi-layer perceptron: flattened pixels, then hidden layers with batch normalisation.

Shapes: B images, C channels.
"""

from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from selfadapt.models.backbone import Backbone


class MLP(Backbone):
    def __init__(self, num_inputs: int, *, width: int = 256, depth: int = 2) -> None:
        super().__init__()
        sizes = [num_inputs] + [width] * depth
        layers: list[nn.Module] = []
        for size_in, size_out in pairwise(sizes):
            layers += [nn.Linear(size_in, size_out, bias=False), nn.BatchNorm1d(size_out), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers)
        self.num_features = width

    def forward(self, images_BCHW: Tensor) -> Tensor:
        return cast(Tensor, self.layers(torch.flatten(images_BCHW, 1)))
