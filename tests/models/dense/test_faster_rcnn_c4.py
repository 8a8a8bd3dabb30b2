"""The C4 detector and the FCN: their components against torchvision."""

from typing import Any

import pytest
import torch
from torch import nn

from selfadapt.models.backbones.resnet import BasicBlock, Bottleneck, ResNet
from selfadapt.models.batch_norm.batch_statistics import averaged_statistics
from selfadapt.models.dense.faster_rcnn_c4 import c4_detector, shorter_sides
from selfadapt.models.dense.fcn import FCN

SCALE: dict[str, Any] = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.25, 0.3]}


def _resnet50() -> ResNet:
    torch.manual_seed(0)
    return ResNet((3, 4, 6, 3), block=Bottleneck, large_images=True)


def test_sides_of_the_protocol() -> None:
    assert shorter_sides(800) == (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)


def test_resnet50_has_the_parts_of_the_protocol() -> None:
    """The map is torchvision's after layer3; anchors, regions and widths are those of the published detector."""
    from torchvision.models import resnet50

    network = _resnet50()
    other: Any = resnet50()
    own = network.state_dict()
    other.load_state_dict({**other.state_dict(), **own})
    detector: Any = c4_detector(network, 20, **SCALE).eval()
    other.eval()
    x = torch.randn(1, 3, 64, 96)
    expected = x
    for name in ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3"):
        expected = other.get_submodule(name)(expected)
    torch.testing.assert_close(detector.backbone(x), expected)
    assert expected.shape == (1, 1024, 4, 6)
    head = detector.roi_heads.box_head
    regions = torch.randn(2, 1024, 14, 14)
    with torch.no_grad():
        head.extra.weight.uniform_()
        head.extra.running_mean.uniform_()
        # by hand: res5, (x - mean) / deviation * weight + bias, mean over 7×7
        last = other.layer4(regions)
        assert last.shape == (2, 2048, 7, 7)
        by_hand = (last - head.extra.running_mean[:, None, None]) / (1 + head.extra.eps) ** 0.5
        by_hand = (by_hand * head.extra.weight[:, None, None]).mean((2, 3))
        torch.testing.assert_close(head(regions), by_hand, rtol=1e-4, atol=1e-4)
    sizes = {
        tuple(int(n) for n in (box[2:] - box[:2]).tolist()) for box in detector.rpn.anchor_generator.cell_anchors[0]
    }
    assert len(sizes) == 15
    assert {(side, side) for side in (32, 64, 128, 256, 512)} < sizes
    assert detector.roi_heads.box_predictor.cls_score.out_features == 21
    assert all(parameter.requires_grad for parameter in detector.parameters())


@pytest.mark.parametrize(("large", "stride"), [(True, 16), (False, 4)])
def test_regions_are_pooled_from_where_they_are(large: bool, stride: int) -> None:
    """A map that holds its own x and y: the pooled values are the middles of the 14×14 parts of the box."""
    detector: Any = c4_detector(ResNet((1, 1, 1, 1), width=4, block=BasicBlock, large_images=large), 2, **SCALE)
    ys, xs = torch.meshgrid(torch.arange(40.0), torch.arange(40.0), indexing="ij")
    places = (torch.stack([xs, ys])[None] + 0.5) * stride  # of the middles of the map's pixels, in the image
    box = torch.tensor([[5.0, 7.0, 19.0, 28.0]]) * stride
    pooled = detector.roi_heads.box_roi_pool({"0": places}, [box], [(40 * stride, 40 * stride)])
    steps = (torch.arange(14) + 0.5) / 14
    torch.testing.assert_close(pooled[0, 0], (box[0, 0] + steps * (box[0, 2] - box[0, 0])).expand(14, 14))
    torch.testing.assert_close(pooled[0, 1], (box[0, 1] + steps * (box[0, 3] - box[0, 1]))[:, None].expand(14, 14))


@pytest.mark.parametrize("block", [BasicBlock, Bottleneck])
def test_every_weight_of_any_network_learns(block: type[BasicBlock] | type[Bottleneck]) -> None:
    torch.manual_seed(0)
    network: Any = ResNet((1, 1, 1), width=4, block=block, large_images=True)
    detector: Any = c4_detector(network, 3, **SCALE, image_size=96, regions=16).train()
    truth = {"boxes": torch.tensor([[20.0, 20.0, 70.0, 70.0]]), "labels": torch.tensor([2])}
    losses = detector([torch.rand(3, 96, 96), torch.rand(3, 96, 128)], [truth, truth])
    assert set(losses) == {"loss_classifier", "loss_box_reg", "loss_objectness", "loss_rpn_box_reg"}
    torch.stack(list(losses.values())).sum().backward()
    assert all(parameter.grad is not None for parameter in detector.parameters())
    assert all(float(p.grad.abs().sum()) > 0 for p in network.layer1.parameters() if p.grad is not None)


def test_fcn_is_the_network_with_a_dilated_last_stage() -> None:
    """Against torchvision's, whose first dilated block keeps a dilation of one; it gets the other's here."""
    from torchvision.models import resnet50

    network = _resnet50()
    other: Any = resnet50(replace_stride_with_dilation=[False, False, True]).eval()
    other.load_state_dict({**other.state_dict(), **network.state_dict()})
    other.layer4[0].conv2.dilation = other.layer4[0].conv2.padding = (2, 2)
    fcn = FCN(network, 21, **SCALE).eval()
    images = torch.rand(1, 3, 64, 80)
    mean, std = (torch.tensor(SCALE[part])[:, None, None] for part in ("mean", "std"))
    with torch.no_grad():
        expected = (images - mean) / std
        for name in ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4"):
            expected = other.get_submodule(name)(expected)
        assert expected.shape == (1, 2048, 4, 5)
        expected = nn.functional.interpolate(fcn.head(expected), (64, 80), mode="bilinear", align_corners=False)
        torch.testing.assert_close(fcn(images), expected)
    assert expected.shape == (1, 21, 64, 80)


def test_statistics_are_the_mean_over_batches() -> None:
    norm = nn.BatchNorm2d(3)
    norm(torch.randn(4, 3, 5, 5) + 100)
    batches = [torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(n)) * (n + 1) for n in range(3)]
    with averaged_statistics(norm):
        for batch in batches:
            norm(batch)
    assert norm.momentum == 0.1
    means = torch.stack([batch.mean((0, 2, 3)) for batch in batches]).mean(0)
    variances = torch.stack([batch.var((0, 2, 3)) for batch in batches]).mean(0)
    torch.testing.assert_close(norm.running_mean, means)
    torch.testing.assert_close(norm.running_var, variances)
