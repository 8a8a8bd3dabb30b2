"""The backbone base class, and backbones that wrap another one.

Shapes: B inputs, C channels, H by W pixels, F features, D dimensions of a vector.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import cast

import torch
from torch import Tensor, nn

from selfadapt.core.temporary import temporarily


class Backbone(nn.Module):
    """A network from inputs to `num_features` features."""

    num_features: int
    examples: int = 0  # number of training inputs that `see` needs

    def see(self, inputs: Tensor) -> None:
        """Initialise from normalised training inputs, for backbones that depend on the data."""


class WrappedBackbone(Backbone):
    """Any network whose outputs are features."""

    def __init__(self, network: nn.Module, num_features: int) -> None:
        super().__init__()
        self.network, self.num_features = network, num_features

    def forward(self, images_BCHW: Tensor) -> Tensor:
        return cast(Tensor, self.network(images_BCHW))


class Normalised(Backbone):
    """A backbone with input normalisation as its first layer, so that inputs, and attacks on them, are within 0..1.

    Where it is faster, images and weights use the channels-last memory format, unless a layer has fewer than 16
    channels. With fewer, the backward pass of convolutions on the CPU (oneDNN, torch 2.15) is broken: below 8 channels
    it has a race condition, returns different bits each time and may hang; with 8, a strided 1×1 convolution crashes
    the process for images of 48 pixels or more; with 12 and two threads it crashes on CPUs with AVX-512.

    Args:
        backbone: The network behind the normalisation.
        mean_C: Mean of each channel, or of each value of a vector.
        std_C: Standard deviation of the same.
        dropout: Dropout rate of the features, before any head.
        spatial: Whether the inputs are images rather than vectors.
        channels_last: Whether this memory format is faster on the device.
        mirror: Flip test-time augmentation: outside training, average the features of an image and its mirror image.
    """

    mean_C11: Tensor
    std_C11: Tensor

    def __init__(
        self,
        backbone: Backbone,
        mean_C: Tensor,
        std_C: Tensor,
        dropout: float = 0.0,
        *,
        spatial: bool = True,
        mirror: bool = False,
        channels_last: bool = True,
    ) -> None:
        super().__init__()
        self.dropout, self.mirror = nn.Dropout(dropout), mirror
        self.num_features = backbone.num_features
        shape = (-1, 1, 1) if spatial else (-1,)
        self.register_buffer("mean_C11", mean_C.clone().view(shape))
        self.register_buffer("std_C11", std_C.clone().view(shape))
        widths = [module.out_channels for module in backbone.modules() if isinstance(module, nn.Conv2d)]
        narrow = min(widths, default=16) < 16
        suits = channels_last and spatial and not narrow
        self.layout = torch.channels_last if suits else torch.contiguous_format
        self.backbone = backbone.to(memory_format=self.layout)

    def see(self, inputs: Tensor) -> None:
        self.backbone.see(self._normalise(inputs))

    def _normalise(self, images_BCHW: Tensor) -> Tensor:
        images_BCHW = images_BCHW.contiguous(memory_format=self.layout)
        # (x - mean) / std in one pass over the pixels
        return torch.addcmul(-self.mean_C11 / self.std_C11, images_BCHW, 1 / self.std_C11)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        normalised = self._normalise(images_BCHW)
        features_BF = self.backbone(normalised)
        if self.mirror and not self.training:
            features_BF = (features_BF + self.backbone(normalised.flip(3))) / 2
        return cast(Tensor, self.dropout(features_BF))


class FineTuned(Backbone):
    """A pretrained backbone that trains at a lower learning rate than its head.

    Batch normalisation keeps its pretrained statistics, because those of small batches are too noisy.
    """

    lr_scale = 0.1

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone, self.num_features = backbone, backbone.num_features

    def train(self, mode: bool = True) -> "FineTuned":
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        return self

    def forward(self, images_BCHW: Tensor) -> Tensor:
        return cast(Tensor, self.backbone(images_BCHW))


def initialise(modules: Iterable[nn.Module]) -> None:
    """Draw random weights: He initialisation for convolutions, PyTorch's default for linear layers."""
    for module in modules:
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            module.reset_parameters()


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the network inside the wrappers of data-parallel training and torch.compile."""
    while (inner := getattr(model, "module", None) or getattr(model, "_orig_mod", None)) is not None:
        model = inner
    return model


def evaluation_mode(model: nn.Module) -> AbstractContextManager[None]:
    """Put every module into evaluation mode within a block."""
    return temporarily(model.modules(), "training", False)
