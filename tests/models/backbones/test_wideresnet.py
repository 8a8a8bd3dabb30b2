"""Wide residual networks: published numbers of parameters, and the layers as explicit formulas."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, batch_norm, conv2d, linear

from selfadapt.data.inputs import InputSpec
from selfadapt.models.backbones.wideresnet import WideResNet
from selfadapt.models.heads import Classifier
from selfadapt.models.registry import backbone


@pytest.mark.parametrize(("name", "parameters"), [("wrn-28-10", 36_479_194), ("wrn-34-10", 46_160_474)])
def test_parameters_are_as_many_as_published(name: str, parameters: int) -> None:
    with torch.device("meta"):
        model = Classifier(backbone(name, InputSpec.of((3, 32, 32))), 10)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def _written_out(weights: dict[str, Tensor], images: Tensor, depth: int) -> Tensor:
    """The network of TRADES' authors by the names of its weights: block after block, without a module."""

    def activated(x: Tensor, name: str) -> Tensor:
        normal = batch_norm(
            x, weights[f"{name}.running_mean"], weights[f"{name}.running_var"], weights[f"{name}.weight"],
            weights[f"{name}.bias"],
        )  # fmt: skip
        return normal.clamp_min(0)

    x = conv2d(images, weights["conv1.weight"], padding=1)
    for stage in (1, 2, 3):
        for number in range((depth - 4) // 6):
            name = f"block{stage}.layer.{number}"
            stride = 2 if stage > 1 and number == 0 else 1
            h = activated(x, f"{name}.bn1")
            y = conv2d(h, weights[f"{name}.conv1.weight"], stride=stride, padding=1)
            y = conv2d(activated(y, f"{name}.bn2"), weights[f"{name}.conv2.weight"], padding=1)
            shortcut = weights.get(f"{name}.convShortcut.weight")
            x = y + (x if shortcut is None else conv2d(h, shortcut, stride=stride))
    return avg_pool2d(activated(x, "bn1"), x.shape[-1]).flatten(1)


@pytest.mark.parametrize("depth", [10, 16])
def test_the_layers_are_those_of_the_formula(depth: int) -> None:
    network = WideResNet(depth, width=20, dropout=0.3)
    network.train()
    for _ in range(3):  # statistics that are not those of the start
        network(torch.randn(8, 3, 16, 16) + 1)
    network.eval()
    images = torch.randn(4, 3, 16, 16)
    expected = _written_out(dict(network.state_dict()), images, depth)
    torch.testing.assert_close(network(images), expected)
    head = torch.nn.Linear(network.num_features, 10)
    torch.testing.assert_close(head(network(images)), linear(expected, head.weight, head.bias))


def test_dropout_lies_between_the_convolutions() -> None:
    network = WideResNet(10, width=8, dropout=0.5).train()
    images = torch.randn(2, 3, 8, 8)
    assert not torch.equal(network(images), network(images))
    still = WideResNet(10, width=8).train()
    assert torch.equal(still(images), still(images))


def test_a_depth_that_cannot_be_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"must be 6 n \+ 4"):
        WideResNet(27)
