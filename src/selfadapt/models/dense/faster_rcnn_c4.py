"""Faster R-CNN with a C4 backbone: the last stage of a residual network processes regions, the others the image.

For large images and four stages this is the detector of Table 10 (Ren et al., 2015; He et al., 2020): stem to res4
yield a map of stride 16, from which 14×14 values are pooled for each region; res5 downsamples them to 7×7; an extra
batch normalisation and average pooling precede the two linear layers that classify and refine the box. All layers are
trained, and batch normalisation uses batch statistics.

The components are torchvision's, with detectron2's numbers of regions and initial weights. Deviation: torchvision's
box loss is quadratic below 1/9 (smooth L1), detectron2's is the absolute error throughout.

Shapes: R regions, C channels, H by W pixels.
"""

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from selfadapt.models.backbones.resnet import ResNet

_ANCHORS = (2, 4, 8, 16, 32)  # side lengths in strides: 32 to 512 pixels for stride 16
_SHAPES = (0.5, 1.0, 2.0)  # height over width
_POOLED_SIZE = 14
_REGIONS = 512  # sampled per image to train the head


def shorter_sides(image_size: int) -> tuple[int, ...]:
    """Return the sizes of the shorter side in training, of which the last is used at test: 480, 512, …, 800 for 800."""
    return tuple(round(image_size * (0.6 + 0.04 * step)) for step in range(11))


def c4_detector(
    network: ResNet,
    num_classes: int,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    image_size: int = 800,
    regions: int = _REGIONS,
) -> nn.Module:
    """Build a detector from this network; `num_classes` excludes the background."""
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
    from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
    from torchvision.models.detection.roi_heads import RoIHeads
    from torchvision.models.detection.transform import GeneralizedRCNNTransform

    trunk, last, stride = _split(network)
    predictor = FastRCNNPredictor(network.num_features, num_classes + 1)
    for layer, deviation in ((predictor.cls_score, 0.01), (predictor.bbox_pred, 0.001)):
        nn.init.normal_(layer.weight, std=deviation)
        nn.init.zeros_(layer.bias)
    heads = RoIHeads(
        _RegionPooling(stride), _Head(last, network.num_features), predictor,
        fg_iou_thresh=0.5, bg_iou_thresh=0.5, batch_size_per_image=regions, positive_fraction=0.25,
        bbox_reg_weights=None, score_thresh=0.05, nms_thresh=0.5, detections_per_img=100,
    )  # fmt: skip
    sides = shorter_sides(image_size)
    resized = GeneralizedRCNNTransform(sides, round(image_size * 5 / 3), list(mean), list(std))
    model: nn.Module = GeneralizedRCNN(trunk, _proposals(network, stride), heads, resized)
    return model


def _split(network: ResNet) -> tuple[nn.Module, nn.Module, int]:
    """Return the layers for the image, the layers for a region, and the stride of the map between them."""
    *names, last = network.layer_names
    trunk = nn.Sequential(OrderedDict((name, network.get_submodule(name)) for name in names))
    stem = 1 if isinstance(network.maxpool, nn.Identity) else 4
    return trunk, network.get_submodule(last), stem * 2 ** (len(names) - 5)


def _proposals(network: ResNet, stride: int) -> nn.Module:
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead

    anchors = AnchorGenerator((tuple(stride * size for size in _ANCHORS),), (_SHAPES,))
    proposals: nn.Module = RegionProposalNetwork(
        anchors, RPNHead(network.num_features // 2, anchors.num_anchors_per_location()[0]),
        fg_iou_thresh=0.7, bg_iou_thresh=0.3, batch_size_per_image=256, positive_fraction=0.5,
        pre_nms_top_n={"training": 12_000, "testing": 6_000}, post_nms_top_n={"training": 2_000, "testing": 1_000},
        nms_thresh=0.7,
    )  # fmt: skip
    return proposals


class _RegionPooling(nn.Module):
    """RoIAlign to 14×14 values per region."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.scale = 1 / stride

    def forward(self, maps: dict[str, Tensor], boxes: list[Tensor], sizes: list[tuple[int, int]]) -> Tensor:
        from torchvision.ops import roi_align

        (only,) = maps.values()
        pooled: Tensor = roi_align(only, boxes, _POOLED_SIZE, self.scale, sampling_ratio=-1, aligned=True)
        return pooled


class _Head(nn.Module):
    def __init__(self, last: nn.Module, channels: int) -> None:
        super().__init__()
        self.last = last
        self.extra = nn.BatchNorm2d(channels)

    def forward(self, regions_RCHW: Tensor) -> Tensor:
        features_RC: Tensor = self.extra(self.last(regions_RCHW)).mean((2, 3))
        return features_RC
