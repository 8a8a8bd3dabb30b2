"""The whitened network: the output of its first layer, and which parameters are trained."""

import torch
from torch.nn.functional import conv2d, cross_entropy

from selfadapt.data.inputs import InputSpec
from selfadapt.models.backbone import Normalised
from selfadapt.models.backbones.whitened import WhitenedNet
from selfadapt.models.heads import Classifier
from selfadapt.models.registry import backbone


def _images(count: int = 64) -> torch.Tensor:
    """Smooth ones, so that neighbouring pixels go together."""
    rough = torch.randn(count, 3, 18, 18, generator=torch.Generator().manual_seed(0))
    mixed = torch.einsum("dc,bchw->bdhw", torch.tensor([[1.0, 0.2, 0.0], [0.7, 0.6, 0.1], [0.5, 0.3, 0.9]]), rough)
    return conv2d(mixed, torch.full((3, 1, 3, 3), 1 / 3), groups=3)


def test_patches_come_out_uncorrelated_with_deviation_one() -> None:
    network, images = WhitenedNet(channels=3, width=8), _images()
    network.see(images)
    rows = network.whitening(images).permute(0, 2, 3, 1).flatten(0, 2)
    own, negative = rows[:, :12], rows[:, 12:]
    torch.testing.assert_close(own.T @ own / len(own), torch.eye(12), atol=0.05, rtol=0)  # 5e-4 was added
    torch.testing.assert_close(negative, -own)


def test_convolutions_begin_by_passing_their_inputs_on() -> None:
    images = _images(2)[:, :, :8, :8]
    first = WhitenedNet(channels=1, width=12).groups[0][0]  # type: ignore[index]
    eight = torch.cat([images, images, images[:, :2]], 1)
    torch.testing.assert_close(first(eight)[:, :8], eight)


def test_whitening_and_scales_are_not_learned() -> None:
    model = Classifier(backbone("whitened", InputSpec.of((3, 16, 16)), width=8), 4)
    model.backbone.see(_images())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    cross_entropy(model(_images(8)), torch.arange(8) % 4).backward()
    optimizer.step()
    same = {name for name, value in model.named_parameters() if torch.equal(value, before[name])}
    scales = {name for name, value in model.named_parameters() if value.ndim == 1 and name.endswith("weight")}
    assert same == scales | {"backbone.whitening.weight"}


def test_outside_training_an_image_and_its_mirror_image_are_the_same() -> None:
    torch.manual_seed(0)
    plain, mirrored = (
        Normalised(WhitenedNet(channels=3, width=8), torch.zeros(3), torch.ones(3), mirror=mirror)
        for mirror in (False, True)
    )
    images = _images(4)
    mirrored.load_state_dict(plain.state_dict())
    expected = (plain.eval()(images) + plain(images.flip(3))) / 2
    torch.testing.assert_close(mirrored.eval()(images), expected)
    torch.testing.assert_close(mirrored(images.flip(3)), expected)
    torch.testing.assert_close(mirrored.train()(images), plain.train()(images))
