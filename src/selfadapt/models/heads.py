"""What goes before and after a backbone.

Shapes: B images, C channels, F features, K outputs.
"""

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn


class Backbone(nn.Module):
    """A network from inputs to `num_features` features."""

    num_features: int
    examples: int = 0  # training inputs that it is to see before it learns

    def see(self, inputs: Tensor) -> None:
        """Take what is needed from training inputs, normalised as the network gets them."""


class Normalised(Backbone):
    """A backbone behind the normalisation of its inputs, so that inputs, and attacks on them, live in 0..1.

    Images and weights are laid out with the channels last, which is faster. Not where a layer has fewer than 16
    channels: there the CPU's convolutions (oneDNN, in torch 2.15) fail in the backward pass. Below 8 they race, give
    different bits each time, and may hang; with 8, one of 1×1 with a stride crashes the process from images of 48
    pixels on; with 12 and two threads they crash it on a CPU with AVX-512.
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
    ) -> None:
        """`dropout` is the share of features that training leaves out, before whatever head comes.

        Without `spatial` the inputs are vectors, and the numbers are those of their values. With `mirror`, features
        outside training are the mean of those of the image and of its mirror image.
        """
        super().__init__()
        self.dropout, self.mirror = nn.Dropout(dropout), mirror
        self.num_features = backbone.num_features
        around = (1, 1) if spatial else ()  # of an image the numbers hold for every pixel
        self.register_buffer("mean_C11", mean_C.clone().view(-1, *around))
        self.register_buffer("std_C11", std_C.clone().view(-1, *around))
        widths = [module.out_channels for module in backbone.modules() if isinstance(module, nn.Conv2d)]
        narrow = min(widths, default=16) < 16
        self.layout = torch.channels_last if spatial and not narrow else torch.contiguous_format
        self.backbone = backbone.to(memory_format=self.layout)

    def see(self, inputs: Tensor) -> None:
        self.backbone.see(self._scaled(inputs))

    def _scaled(self, images_BCHW: Tensor) -> Tensor:
        images_BCHW = images_BCHW.contiguous(memory_format=self.layout)
        # (x - mean) / std in one pass over the pixels
        return torch.addcmul(-self.mean_C11 / self.std_C11, images_BCHW, 1 / self.std_C11)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        scaled = self._scaled(images_BCHW)
        features_BF = self.backbone(scaled)
        if self.mirror and not self.training:
            features_BF = (features_BF + self.backbone(scaled.flip(3))) / 2
        return cast(Tensor, self.dropout(features_BF))


class Given(Backbone):
    """Vectors as they are: a head on it is a linear classifier."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features

    def forward(self, vectors_BD: Tensor) -> Tensor:
        return vectors_BD


class FineTuned(Backbone):
    """A pretrained backbone that goes on learning, at a smaller rate than its head.

    Batch normalisation keeps the statistics that it was trained with: those of small batches would do harm.
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


def draw_anew(modules: Iterable[nn.Module]) -> None:
    """Other random weights, drawn as the backbones draw theirs."""
    for module in modules:
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            module.reset_parameters()


class Classifier(nn.Module):
    """A backbone with a linear layer on top."""

    def __init__(self, backbone: Backbone, num_outputs: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(backbone.num_features, num_outputs)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.backbone(images_BCHW)))


class CorrectedClassifier(Classifier):
    """A classifier that knows how labels go wrong, P(given j | true k). Its outputs are those for the true class."""

    transition_KK: Tensor

    def __init__(self, backbone: Backbone, num_classes: int) -> None:
        super().__init__(backbone, num_classes)
        self.register_buffer("transition_KK", torch.eye(num_classes))


def projection_head(num_inputs: int, num_hidden: int, num_outputs: int, *, normalised: bool = True) -> nn.Sequential:
    """One hidden layer, mostly with batch normalisation: projector and predictor of self-supervised methods."""
    return nn.Sequential(
        nn.Linear(num_inputs, num_hidden),
        *([nn.BatchNorm1d(num_hidden)] if normalised else []),
        nn.ReLU(inplace=True),
        nn.Linear(num_hidden, num_outputs),
    )


def learning_rate_scales(model: nn.Module) -> dict[nn.Parameter, float]:
    """What multiplies the learning rate of each parameter: the `lr_scale` of the modules it is in that have one."""
    scales = dict.fromkeys(model.parameters(), 1.0)
    for module in model.modules():
        scale = cast(float, getattr(module, "lr_scale", 1.0))
        scales |= {parameter: scale * scales[parameter] for parameter in module.parameters() if scale != 1}
    return scales


def unwrapped(model: nn.Module) -> nn.Module:
    """The network itself, out of what data-parallel training or the compiler put around it."""
    while (inner := getattr(model, "module", None) or getattr(model, "_orig_mod", None)) is not None:
        model = inner
    return model
