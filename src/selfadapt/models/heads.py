"""Heads: layers on top of a backbone.

Shapes: B images, C channels, H by W pixels, K classes.
"""

from typing import cast

import torch
from torch import Tensor, nn

from selfadapt.models.backbone import Backbone


class Classifier(nn.Module):
    """A backbone with a linear layer on top. `buffers` are stored with the weights."""

    def __init__(self, backbone: Backbone, num_outputs: int, **buffers: Tensor) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(backbone.num_features, num_outputs)
        for name, values in buffers.items():
            self.register_buffer(name, values)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.backbone(images_BCHW)))


class CorrectedClassifier(Classifier):
    """A classifier of the true class, with the noise matrix P(given label j | true class k) as a buffer."""

    transition_KK: Tensor

    def __init__(self, backbone: Backbone, num_classes: int) -> None:
        super().__init__(backbone, num_classes, transition_KK=torch.eye(num_classes))


def projection_head(num_inputs: int, num_hidden: int, num_outputs: int, *, normalised: bool = True) -> nn.Sequential:
    """Build the projector or predictor of a self-supervised method: one hidden layer, with or without batch norm."""
    return nn.Sequential(
        nn.Linear(num_inputs, num_hidden),
        *([nn.BatchNorm1d(num_hidden)] if normalised else []),
        nn.ReLU(inplace=True),
        nn.Linear(num_hidden, num_outputs),
    )
