"""What goes before and after a backbone.

Shapes: B images, C channels, F features, K outputs.
"""

from typing import cast

import torch
from torch import Tensor, nn


class Backbone(nn.Module):
    """A network from images to `num_features` features."""

    num_features: int


class Normalised(Backbone):
    """A backbone behind the normalisation of its inputs, so that inputs, and attacks on them, live in 0..1.

    Images and weights are laid out with the channels last, which is faster. Not below 8 channels: there the CPU's
    convolutions (oneDNN, in torch 2.15) then race in the backward pass, give other bits each time, and may hang.
    """

    mean_C11: Tensor
    std_C11: Tensor

    def __init__(self, backbone: Backbone, mean_C: Tensor, std_C: Tensor, dropout: float = 0.0) -> None:
        """`dropout` is the share of features that training leaves out, before whatever head comes."""
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.num_features = backbone.num_features
        self.register_buffer("mean_C11", mean_C.clone().view(-1, 1, 1))
        self.register_buffer("std_C11", std_C.clone().view(-1, 1, 1))
        widths = [module.out_channels for module in backbone.modules() if isinstance(module, nn.Conv2d)]
        self.layout = torch.channels_last if min(widths, default=8) >= 8 else torch.contiguous_format
        self.backbone = backbone.to(memory_format=self.layout)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        images_BCHW = images_BCHW.contiguous(memory_format=self.layout)
        # (x - mean) / std in one pass over the pixels
        scaled = torch.addcmul(-self.mean_C11 / self.std_C11, images_BCHW, 1 / self.std_C11)
        return cast(Tensor, self.dropout(self.backbone(scaled)))


class Classifier(nn.Module):
    """A backbone with a linear layer on top."""

    def __init__(self, backbone: Backbone, num_outputs: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(backbone.num_features, num_outputs)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.backbone(images_BCHW)))


def projection_head(num_inputs: int, num_hidden: int, num_outputs: int) -> nn.Sequential:
    """One hidden layer with batch normalisation: projector and predictor of self-supervised methods."""
    return nn.Sequential(
        nn.Linear(num_inputs, num_hidden),
        nn.BatchNorm1d(num_hidden),
        nn.ReLU(inplace=True),
        nn.Linear(num_hidden, num_outputs),
    )


def unwrapped(model: nn.Module) -> nn.Module:
    """The network itself, out of what data-parallel training or the compiler put around it."""
    while (inner := getattr(model, "module", None) or getattr(model, "_orig_mod", None)) is not None:
        model = inner
    return model
