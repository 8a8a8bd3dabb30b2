"""Networks for tests."""

import torch
from torch import Tensor, nn

from selfadapt.models.heads import Backbone


class Smooth(Backbone):
    """Without batch normalisation, so that a part of a batch sees what the whole would."""

    num_features = 8

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 8)

    def forward(self, images: Tensor) -> Tensor:
        return torch.tanh(self.layer(images.flatten(1)))
