"""Pretrained timm models, with weights from a package, a file or the timm hub.

`pretrained(DEFAULT)` (models/pretrained/weights.py) works offline: its weights are installed as a package.

Mean and standard deviation from the timm configuration become a layer of the model, so that inputs are within 0..1;
size, interpolation and crop become a `Frame` for reading images.

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
from selfadapt.models.backbone import Normalised, WrappedBackbone
from selfadapt.models.pretrained.weights import first_line, tensors_checksum, with_weights
from selfadapt.models.registry import NAMES


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A backbone for images within 0..1, and how to read images for it."""

    name: str  # in timm
    backbone: Normalised
    channels: int
    frame: Frame
    source: str  # origin of the weights, for reports

    @property
    def shape(self) -> Shape:
        return self.channels, self.frame.size, self.frame.size

    def weights(self) -> dict[str, Tensor]:
        """Return the weights under their timm names, as `pretrained` reads them."""
        return dict(cast(WrappedBackbone, self.backbone.backbone).network.state_dict())

    def about(self) -> dict[str, Any]:
        """Return everything that features depend on besides the image."""
        return {
            "network": self.name,
            "weights": tensors_checksum(self.backbone.state_dict().values()),  # including mean and standard deviation
            "channels": self.channels,
            "frame": [self.frame.size, self.frame.interpolation, self.frame.crop, self.frame.squash],
        }


def timm_name(model: str) -> str | None:
    """Return the timm name of a model; None for built-in networks, which take precedence."""
    if model.startswith("timm/"):
        return model.removeprefix("timm/")
    return None if model in NAMES else model


def network_shape(name: str) -> Shape:
    """Return the default input shape C×H×W of a timm model."""
    channels, height, width = _configuration(name)["input_size"]
    return channels, height, width


def pretrained(
    name: str, *, weights: str = "pretrained", size: int | None = None, channels: int | None = None
) -> Pretrained:
    """Load a timm model that outputs features.

    Args:
        name: Name of the model in timm.
        weights: `pretrained` (from an installed package, else the timm hub), `none` (random), or a file.
        size: Image size in pixels; the model's default if None.
        channels: Colour channels of the images; the model's default if None.

    Raises:
        UserError: If the model or its weights cannot be loaded, or do not support this size or these channels.
    """
    import timm

    configuration = _configuration(name)
    default_channels, default_size = configuration["input_size"][0], configuration["input_size"][-1]
    if weights == "none":
        default_channels = channels or default_channels
    elif channels not in (None, default_channels):
        raise UserError(
            f"the images have {channels} colour channel{'s' if channels != 1 else ''}, but the weights of {name} were "
            f"trained on {default_channels}; convert the images, or train from scratch with --weights none"
        )
    options: dict[str, Any] = {"num_classes": 0, "in_chans": default_channels}
    if size is not None and configuration.get("fixed_input_size"):
        options["img_size"] = size

    def build(**more: Any) -> nn.Module:
        try:
            network: nn.Module = timm.create_model(name, **options, **more)
        except (AssertionError, TypeError, ValueError) as error:
            raise UserError(
                f"timm cannot build {name} for {size or default_size} pixels: {first_line(error)}"
            ) from error
        return network

    network, source = with_weights(name, weights, configuration, build)
    if size not in (None, default_size):
        _try_size(network, name, (default_channels, size, size))
    mean_C, std_C = (torch.tensor(configuration[key]) for key in ("mean", "std"))
    if len(mean_C) != default_channels:
        mean_C, std_C = mean_C.mean().expand(default_channels), std_C.mean().expand(default_channels)
    num_features = int(cast(int, getattr(network, "head_hidden_size", network.num_features)))
    return Pretrained(
        name=name,
        backbone=Normalised(WrappedBackbone(network, num_features), mean_C, std_C),
        channels=default_channels,
        frame=_frame(configuration, size or default_size),
        source=source,
    )


def _configuration(name: str) -> dict[str, Any]:
    """Return the timm configuration of a model and its weights."""
    import timm

    if not timm.is_model(name):
        near = difflib.get_close_matches(name, [*timm.list_models(), *NAMES], 3)
        raise UserError(
            f"--model {name!r} is neither a timm model nor one of {', '.join(NAMES)}"
            + (f"; did you mean {' or '.join(near)}?" if near else "; see `timm.list_models()`")
        )
    try:
        configuration: Any = timm.models.get_pretrained_cfg(name)
    except RuntimeError as error:  # a tag that does not exist
        raise UserError(f"--model {name!r}: {first_line(error)}") from error
    return dict(configuration.to_dict())


@torch.no_grad()
def _try_size(network: nn.Module, name: str, shape: Shape) -> None:
    """Raise a UserError if the network does not support images of this size."""
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
