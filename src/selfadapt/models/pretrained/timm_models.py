"""Networks that already know something: timm's architectures with weights from a package, a file or timm's hub.

`pretrained(DEFAULT)` (models/pretrained/weights.py) needs no connection: its weights are installed with a package.

Mean and deviation come from timm's configuration and become a layer of the model, so inputs live in 0..1; size,
interpolation and crop become a `Frame`, by which images are read.

Shapes: B images, C channels, H by W pixels, F features.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from selfadapt.core.errors import UserError
from selfadapt.data.images.decode import Frame, Interpolation
from selfadapt.data.images.storage import Shape
from selfadapt.models.heads import Backbone, Normalised
from selfadapt.models.pretrained.weights import first_line, tensors_checksum, with_weights
from selfadapt.models.registry import NAMES


class TimmBackbone(Backbone):
    """One of timm's networks without its classifier."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.num_features = int(cast(int, getattr(network, "head_hidden_size", network.num_features)))

    def forward(self, images_BCHW: Tensor) -> Tensor:
        return cast(Tensor, self.network(images_BCHW))


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A backbone that takes images in 0..1, and how images must be read for it."""

    name: str  # timm's
    backbone: Normalised
    channels: int
    frame: Frame
    source: str  # where the weights come from, in words

    @property
    def shape(self) -> Shape:
        return self.channels, self.frame.size, self.frame.size

    def weights(self) -> dict[str, Tensor]:
        """What timm calls the tensors, to be read by `pretrained` again."""
        return dict(cast(TimmBackbone, self.backbone.backbone).network.state_dict())

    def about(self) -> dict[str, Any]:
        """All that features depend on, besides the image."""
        return {
            "network": self.name,
            "weights": tensors_checksum(self.backbone.state_dict().values()),  # mean and deviation among them
            "channels": self.channels,
            "frame": [self.frame.size, self.frame.interpolation, self.frame.crop, self.frame.squash],
        }


def timm_name(model: str) -> str | None:
    """What timm calls the model that a user names; None for our own networks, which go first."""
    if model.startswith("timm/"):
        return model.removeprefix("timm/")
    return None if model in NAMES else model


def network_shape(name: str) -> Shape:
    """The images, C×H×W, that the network timm calls so was made for."""
    channels, height, width = _configuration(name)["input_size"]
    return channels, height, width


def pretrained(
    name: str, *, weights: str = "pretrained", size: int | None = None, channels: int | None = None
) -> Pretrained:
    """The network that timm calls so, with its features as outputs.

    `weights` is `pretrained` (installed with a package, else from timm's hub), `none` (random), or a file. `size` is
    that of the images in pixels, the network's own by default. `channels` are those of the images; weights that were
    learned on others are refused.
    """
    import timm

    configuration = _configuration(name)
    own_channels, own_size = configuration["input_size"][0], configuration["input_size"][-1]
    if weights == "none":
        own_channels = channels or own_channels
    elif channels not in (None, own_channels):
        raise UserError(
            f"the images have {channels} colour channel{'s' if channels != 1 else ''}, but the weights of {name} were "
            f"learned on {own_channels}; bring the images to {own_channels}, or begin from nothing with --weights none"
        )
    options: dict[str, Any] = {"num_classes": 0, "in_chans": own_channels}
    if size is not None and configuration.get("fixed_input_size"):
        options["img_size"] = size

    def build(**more: Any) -> nn.Module:
        try:
            network: nn.Module = timm.create_model(name, **options, **more)
        except (AssertionError, TypeError, ValueError) as error:
            raise UserError(f"timm cannot build {name} for {size or own_size} pixels: {first_line(error)}") from error
        return network

    network, source = with_weights(name, weights, configuration, build)
    if size not in (None, own_size):
        _try_size(network, name, (own_channels, size, size))
    mean_C, std_C = (torch.tensor(configuration[key]) for key in ("mean", "std"))
    if len(mean_C) != own_channels:
        mean_C, std_C = mean_C.mean().expand(own_channels), std_C.mean().expand(own_channels)
    return Pretrained(
        name=name,
        backbone=Normalised(TimmBackbone(network), mean_C, std_C),
        channels=own_channels,
        frame=_frame(configuration, size or own_size),
        source=source,
    )


def _configuration(name: str) -> dict[str, Any]:
    """timm's description of the network and its weights."""
    import timm

    if not timm.is_model(name):
        near = difflib.get_close_matches(name, [*timm.list_models(), *NAMES], 3)
        raise UserError(
            f"--model {name!r} is neither one of {', '.join(NAMES)} nor known to timm"
            + (f"; did you mean {' or '.join(near)}?" if near else "; `timm.list_models()` lists what is")
        )
    try:
        found = timm.models.get_pretrained_cfg(name)
    except RuntimeError as error:  # a tag that does not exist
        raise UserError(f"--model {name!r}: {first_line(error)}") from error
    assert found is not None
    return cast(dict[str, Any], found.to_dict())


@torch.no_grad()
def _try_size(network: nn.Module, name: str, shape: Shape) -> None:
    """Find out now whether the network takes images of another size than its own."""
    try:
        network.eval()(torch.zeros(1, *shape))
    except (AssertionError, RuntimeError, ValueError) as error:
        raise UserError(f"{name} does not take images of {shape[-1]} pixels: {first_line(error)}") from error
    network.train()


def _frame(configuration: Mapping[str, Any], size: int) -> Frame:
    interpolation = configuration.get("interpolation")
    known = interpolation in ("nearest", "bilinear", "bicubic", "lanczos")
    return Frame(
        size=size,
        interpolation=cast(Interpolation, interpolation) if known else "bicubic",
        crop=configuration.get("crop_pct") or 0.875,
        squash=configuration.get("crop_mode") == "squash",
    )
