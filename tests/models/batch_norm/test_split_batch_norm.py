"""Split batch normalisation against ordinary batch normalisation of each part."""

import copy

import pytest
import torch
from torch import nn

from selfadapt.data.inputs import InputSpec
from selfadapt.models.batch_norm.split_batch_norm import SplitBatchNorm, split_batch_norms
from selfadapt.models.registry import backbone


@pytest.mark.parametrize(("shape", "kind"), [((11, 3, 4, 4), nn.BatchNorm2d), ((11, 3), nn.BatchNorm1d)])
def test_each_part_is_normalised_by_itself(shape: tuple[int, ...], kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(kind(3))
    plain = [copy.deepcopy(network[0]) for _ in range(4)]
    split_batch_norms(network, 4)
    own = network[0]
    assert isinstance(own, SplitBatchNorm)
    for step in range(3):
        values = (1 + step) * torch.randn(shape)
        parts = values.tensor_split(4)
        said = torch.cat([each(part) for each, part in zip(plain, parts, strict=True)])
        torch.testing.assert_close(network(values), said)
        for name in ("running_mean", "running_var"):  # all begin the next step with the mean over the parts
            mean = torch.stack([each.get_buffer(name) for each in plain]).mean(0)
            torch.testing.assert_close(own.get_buffer(name), mean)
            for each in plain:
                each.get_buffer(name).copy_(mean)
    assert torch.equal(network.eval()(values), plain[0].eval()(values))


def test_few_samples_make_fewer_parts() -> None:
    network = nn.Sequential(nn.BatchNorm1d(2))
    split_batch_norms(network, 8)
    values = torch.randn(5, 2)
    wanted = torch.cat([nn.BatchNorm1d(2)(part) for part in values.tensor_split(2)])
    torch.testing.assert_close(network(values), wanted)


def test_an_ordinary_network_takes_the_weights() -> None:
    spec = InputSpec("images", (3, 8, 8))
    split, plain = backbone("resnet-small", spec), backbone("resnet-small", spec)
    split_batch_norms(split, 4)
    split(torch.rand(8, 3, 8, 8))
    plain.load_state_dict(split.state_dict())
    images = torch.rand(3, 3, 8, 8)
    torch.testing.assert_close(split.eval()(images), plain.eval()(images))
