"""Fully convolutional network for segmentation (Long et al., 2015), in the version that MoCo (2020) evaluates with.

A residual network whose last stage has stride 1 and dilation 2, so that four stages on large images yield a map of
stride 16; two 3×3 convolutions of 256 channels with dilation 6 and batch normalisation; and a 1×1 convolution to
classes, upsampled to the size of the image.

Shapes: B images, C channels, K classes, H by W pixels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from selfadapt.models.backbones.resnet import ResNet

_CHANNELS = 256
_DILATION = 6


class FCN(nn.Module):
    """A segmentation network on top of `network`, for images within 0..1; `num_classes` includes the background."""

    mean_C11: Tensor
    std_C11: Tensor

    def __init__(self, network: ResNet, num_classes: int, *, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        for name, values in (("mean_C11", mean), ("std_C11", std)):
            self.register_buffer(name, torch.tensor(values).view(-1, 1, 1))
        layers = [network.get_submodule(name) for name in network.layer_names]
        self.trunk = nn.Sequential(*layers)
        _dilate(layers[-1])
        self.head = nn.Sequential(
            *_dilated(network.num_features), *_dilated(_CHANNELS), nn.Conv2d(_CHANNELS, num_classes, 1)
        )

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """Logits, B×K×H×W."""
        small = self.head(self.trunk((images_BCHW - self.mean_C11) / self.std_C11))
        return interpolate(small, images_BCHW.shape[2:], mode="bilinear", align_corners=False)


def _dilated(channels: int) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(channels, _CHANNELS, 3, padding=_DILATION, dilation=_DILATION, bias=False)
    return convolution, nn.BatchNorm2d(_CHANNELS), nn.ReLU(inplace=True)


def _dilate(stage: nn.Module) -> None:
    for module in stage.modules():
        if isinstance(module, nn.Conv2d):
            module.stride = (1, 1)
            if module.kernel_size == (3, 3):
                module.dilation = module.padding = (2, 2)
