"""VGG-16 with dropout: its layers, its sizes, and dropout at test time."""

import pytest
import torch
from torch import nn

from selfadapt.data.images.storage import TensorImages
from selfadapt.data.inputs import InputSpec
from selfadapt.evaluation.selective.mc_dropout import has_dropout, mc_dropout
from selfadapt.models.backbones.mlp import MLP
from selfadapt.models.backbones.vgg import VGG
from selfadapt.models.heads import Classifier
from selfadapt.models.registry import backbone

CPU = torch.device("cpu")


@pytest.mark.parametrize("side", [8, 28, 32, 64])
def test_every_size_gives_the_features(side: int) -> None:
    network = backbone("vgg16", InputSpec("images", (3, side, side)), width=4)
    assert network(torch.rand(2, 3, side, side)).shape == (2, network.num_features) == (2, 32)


def test_the_convolutions_are_those_of_torchvision() -> None:
    from torchvision.models import vgg16_bn

    theirs = [(m.in_channels, m.out_channels) for m in vgg16_bn().modules() if isinstance(m, nn.Conv2d)]
    ours = backbone("vgg16", InputSpec("images", (3, 32, 32)))
    assert [(m.in_channels, m.out_channels) for m in ours.modules() if isinstance(m, nn.Conv2d)] == theirs


def test_the_layers_are_those_of_the_programs_of_sat_and_deep_gamblers() -> None:
    """Convolution, ReLU, batch normalisation; channel dropout 0.3, then 0.4 within the blocks, 0.5 after the last."""
    ours = backbone("vgg16", InputSpec("images", (3, 32, 32)), width=4)
    kinds: dict[type[nn.Module], str] = {
        nn.Conv2d: "C",
        nn.ReLU: "R",
        nn.BatchNorm2d: "B",
        nn.MaxPool2d: "M",
        nn.Linear: "L",
        nn.BatchNorm1d: "b",
    }
    dropouts: dict[type[nn.Module], str] = {nn.Dropout: "d", nn.Dropout2d: "D"}
    found = [
        kinds.get(type(m)) or f"{dropouts[type(m)]}{m.p}" for m in ours.modules() if type(m) in {**kinds, **dropouts}
    ]
    two, three = ["C", "R", "B", "D{}", "C", "R", "B", "M"], ["C", "R", "B", "D0.4"] * 2 + ["C", "R", "B", "M"]
    published = [each.format(0.3) for each in two] + [each.format(0.4) for each in two] + three * 3 + ["D0.5"]
    assert found == [*published, "L", "R", "b", "d0.5"]
    assert all(m.bias is not None for m in ours.modules() if isinstance(m, nn.Conv2d | nn.Linear))
    ours.train()
    assert isinstance(ours, VGG)
    dropped = ours.convolutions[:4](torch.rand(2, 3, 32, 32))  # whole channels
    empty = (dropped == 0).flatten(2).all(2)
    assert torch.equal(empty, (dropped == 0).flatten(2).any(2))


def test_dropout_at_test_time_leaves_the_model_and_the_random_numbers_as_they_were() -> None:
    torch.manual_seed(0)
    model = Classifier(backbone("vgg16", InputSpec("images", (1, 8, 8)), width=4), 3)
    images = TensorImages(torch.randint(0, 256, (7, 1, 8, 8), dtype=torch.uint8))
    before, state = torch.get_rng_state(), {name: value.clone() for name, value in model.state_dict().items()}
    predicted, confidence = mc_dropout(model, images, 3, CPU, passes=20)
    again = mc_dropout(model, images, 3, CPU, passes=20)
    assert torch.equal(predicted, again[0])
    assert all(torch.equal(values, again[1][name]) for name, values in confidence.items())
    assert (confidence["mc-dropout"] < 0).all()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert model.training
    assert has_dropout(model)
    assert not has_dropout(MLP(4))


def test_many_passes_give_the_variance_of_the_answer_and_of_every_class() -> None:
    """One dropped input: the output is 2x or 0 with even odds, so each class's probability has a known variance."""

    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dropout = nn.Dropout(0.5)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return torch.cat(
                [self.dropout(images[:, 0, 0]), torch.zeros(len(images), 1), -torch.ones(len(images), 1)], 1
            )

    images = TensorImages(torch.full((4, 1, 1, 1), 255, dtype=torch.uint8))
    predicted, confidence = mc_dropout(Dropped(), images, 3, CPU, passes=4000)
    odds = torch.tensor([[2.0, 0.0, -1.0], [0.0, 0.0, -1.0]]).softmax(1)  # input kept, input dropped
    variances = odds.var(0, unbiased=False)
    assert predicted.tolist() == [0] * 4
    assert -confidence["mc-dropout"].mean().item() == pytest.approx(float(variances[0]), rel=0.05)
    assert -confidence["mc-dropout-classes"].mean().item() == pytest.approx(float(variances.mean()), rel=0.05)
    assert confidence["mc-dropout-mean"].mean().item() == pytest.approx(float(odds[:, 0].mean()), rel=0.02)
