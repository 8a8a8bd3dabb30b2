"""AlexNet for small and large images."""

import pytest
import torch
from torch import nn
from torchvision.models import alexnet

from selfadapt.data.inputs import InputSpec
from selfadapt.models.backbones.alexnet import AlexNet
from selfadapt.models.registry import backbone


@pytest.mark.parametrize("side", [1, 8, 32, 96, 131])
def test_every_size_gives_the_features(side: int) -> None:
    network = backbone("alexnet", InputSpec("images", (3, side, side)), width=4).eval()
    assert network(torch.rand(2, 3, side, side)).shape == (2, network.num_features) == (2, 16)


def test_the_convolutions_for_large_images_are_those_of_torchvision() -> None:
    def shapes(network: nn.Module) -> list[tuple[object, ...]]:
        found = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
        return [(module.in_channels, module.out_channels, module.kernel_size, module.stride) for module in found]

    assert shapes(AlexNet(large_images=True)) == shapes(alexnet(weights=None))
