"""Residual networks against torchvision, including weights."""

import pytest
import torch
import torchvision

from selfadapt.core.errors import UserError
from selfadapt.data.inputs import InputSpec
from selfadapt.models.backbone import Normalised
from selfadapt.models.backbones.mlp import MLP
from selfadapt.models.backbones.resnet import ResNet
from selfadapt.models.heads import Classifier
from selfadapt.models.registry import NAMES, backbone


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50", "resnet101"])
def test_large_images_equal_torchvision(name: str) -> None:
    torch.manual_seed(0)
    theirs = getattr(torchvision.models, name)()
    ours = backbone(name, InputSpec("images", (3, 224, 224)))
    weights = {key: value for key, value in theirs.state_dict().items() if not key.startswith("fc.")}
    ours.load_state_dict(weights, strict=True)
    theirs.fc = torch.nn.Identity()
    images = torch.randn(2, 3, 96, 96)
    for mode in (True, False):
        theirs.train(mode), ours.train(mode)
        torch.testing.assert_close(ours(images), theirs(images))


def test_small_images_keep_their_size_through_the_stem() -> None:
    network = backbone("resnet18", InputSpec("images", (3, 32, 32)))
    assert isinstance(network, ResNet)
    stem = network.maxpool(network.relu(network.bn1(network.conv1(torch.zeros(1, 3, 32, 32)))))
    assert stem.shape == (1, 64, 32, 32)
    parameters = sum(parameter.numel() for parameter in Classifier(network, 10).parameters())
    assert parameters == 11_173_962  # the usual ResNet-18 for CIFAR10


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"linear"}))
@pytest.mark.parametrize(("channels", "size"), [(1, 8), (1, 28), (3, 32)])
def test_every_network_takes_every_small_image(name: str, channels: int, size: int) -> None:
    network = backbone(name, InputSpec("images", (channels, size, size)), width=4)
    features = network(torch.zeros(2, channels, size, size))
    assert features.shape == (2, network.num_features)


def test_width_scales_the_stages() -> None:
    narrow = backbone("resnet18", InputSpec("images", (3, 32, 32)), width=8)
    assert narrow.num_features == 64


def test_normalisation_is_a_layer_with_saved_statistics() -> None:
    mean, std = torch.tensor([0.2, 0.4, 0.6]), torch.tensor([0.1, 0.2, 0.3])
    inner = MLP(12, width=5)
    network = Normalised(inner, mean, std).eval()
    images = torch.rand(4, 3, 2, 2)
    torch.testing.assert_close(network(images), inner((images - mean.view(3, 1, 1)) / std.view(3, 1, 1)))
    assert torch.equal(network.state_dict()["mean_C11"].flatten(), mean)


@pytest.mark.parametrize(("name", "width"), [("vgg99", None), ("resnet18", 0)])
def test_an_unknown_network_is_a_clear_error(name: str, width: int | None) -> None:
    with pytest.raises(UserError, match=r"vgg99' is not known; choose one of|--width 0"):
        backbone(name, InputSpec("images", (1, 8, 8)), width=width)


@pytest.mark.parametrize("width", [2, 4, 8, 12, 16])
def test_every_width_gives_the_same_bits_each_time(width: int) -> None:
    """Below 16 channels, channels-last convolutions of oneDNN do not, or crash."""
    images, labels = torch.rand(59, 3, 16, 16), torch.arange(59) % 2
    outcomes = set()
    for _ in range(4):
        torch.manual_seed(0)
        network = backbone("resnet-small", InputSpec("images", (3, 16, 16)), width=width)
        model = Classifier(Normalised(network, torch.zeros(3), torch.ones(3)), 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        outcomes.add(b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values()))
    assert len(outcomes) == 1


def test_a_width_of_8_survives_larger_images() -> None:
    """Its strided 1×1 convolutions crash oneDNN in the backward pass from 48 pixels on, with the channels last."""
    network = backbone("resnet-small", InputSpec("images", (3, 48, 48)), width=8)
    model = Classifier(Normalised(network, torch.zeros(3), torch.ones(3)), 2)
    model(torch.rand(2, 3, 48, 48)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
