"""Images as they come from worse cameras and worse weather: 15 kinds of corruption at 5 levels each.

The kinds and both tables of levels are those of CIFAR-10-C and ImageNet-C (Hendrycks and Dietterich, "Benchmarking
Neural Network Robustness to Common Corruptions and Perturbations", 2019; the programs make_cifar_c.py and
make_imagenet_c.py of their repository hendrycks/robustness). CIFAR's levels are for images of about 32 pixels, and
milder; ImageNet's for about 224.

Images made here are not the published files: random draws differ, motion is blurred by our own trail and not by
ImageMagick's, and frost needs pictures (`frost_pictures`). For a comparison with published figures on CIFAR-10-C take
the published arrays (`sources.cifar10c`).

Shapes: N images in all, C channels, H by W pixels.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from selfadapt.core.errors import UserError
from selfadapt.core.rng import seeded
from selfadapt.data.imagenet_c import operators as operators
from selfadapt.data.imagenet_c.filters import plasma
from selfadapt.data.images.storage import decode
from selfadapt.data.inputs import Inputs

LEVELS = (1, 2, 3, 4, 5)
LevelsName = Literal["cifar", "imagenet"]
Settings = Mapping[str, Any]

_DRAWN = (
    "gaussian_noise", "shot_noise", "impulse_noise", "glass_blur", "motion_blur", "snow", "frost", "fog",
    "elastic_transform",
)  # fmt: skip
_PIECE = 500  # images that are drawn for together; another number would draw others


def _levels(*names: str) -> Callable[..., tuple[Settings, ...]]:
    """The settings of the five levels of an operator, from a row of values for each."""
    return lambda *rows: tuple(dict(zip(names, row if isinstance(row, tuple) else (row,), strict=True)) for row in rows)


_snow = _levels("mean", "deviation", "zoom", "least", "radius", "blur", "keep")

CIFAR_LEVELS: Mapping[str, tuple[Settings, ...]] = {
    "gaussian_noise": _levels("deviation")(0.04, 0.06, 0.08, 0.09, 0.10),
    "shot_noise": _levels("photons")(500, 250, 100, 75, 50),
    "impulse_noise": _levels("amount")(0.01, 0.02, 0.03, 0.05, 0.07),
    "defocus_blur": _levels("radius", "edge")((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "glass_blur": _levels("deviation", "reach", "rounds")(
        (0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)
    ),
    "motion_blur": _levels("radius", "deviation")((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    "zoom_blur": _levels("furthest", "step")((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
    "snow": _snow(
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "frost": _levels("keep", "frosted", "scale")(
        (1, 0.2, 0.2), (1, 0.3, 0.2), (0.9, 0.4, 0.2), (0.85, 0.4, 0.2), (0.75, 0.45, 0.2)
    ),
    "fog": _levels("density", "decay")((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    "brightness": _levels("more")(0.05, 0.1, 0.15, 0.2, 0.3),
    "contrast": _levels("keep")(0.75, 0.5, 0.4, 0.3, 0.15),
    "elastic_transform": _levels("bend", "smooth", "shear")(
        (0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)
    ),
    "pixelate": _levels("scale")(0.95, 0.9, 0.85, 0.75, 0.65),
    "jpeg_compression": _levels("quality")(80, 65, 58, 50, 40),
}

_SIDE = 244 / 224  # the published program wrote 244 for the side of 224

IMAGENET_LEVELS: Mapping[str, tuple[Settings, ...]] = {
    "gaussian_noise": _levels("deviation")(0.08, 0.12, 0.18, 0.26, 0.38),
    "shot_noise": _levels("photons")(60, 25, 12, 5, 3),
    "impulse_noise": _levels("amount")(0.03, 0.06, 0.09, 0.17, 0.27),
    "defocus_blur": _levels("radius", "edge")((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    "glass_blur": _levels("deviation", "reach", "rounds")(
        (0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)
    ),
    "motion_blur": _levels("radius", "deviation")((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    "zoom_blur": _levels("furthest", "step")((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    "snow": _snow(
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    "frost": _levels("keep", "frosted", "scale")(
        (1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)
    ),
    "fog": _levels("density", "decay")((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    "brightness": _levels("more")(0.1, 0.2, 0.3, 0.4, 0.5),
    "contrast": _levels("keep")(0.4, 0.3, 0.2, 0.1, 0.05),
    "elastic_transform": _levels("bend", "smooth", "shear")(
        (2 * _SIDE, 0.7 * _SIDE, 0.1 * _SIDE),
        (2 * _SIDE, 0.08 * _SIDE, 0.2 * _SIDE),
        (0.05 * _SIDE, 0.01 * _SIDE, 0.02 * _SIDE),
        (0.07 * _SIDE, 0.01 * _SIDE, 0.02 * _SIDE),
        (0.12 * _SIDE, 0.01 * _SIDE, 0.02 * _SIDE),
    ),
    "pixelate": _levels("scale")(0.6, 0.5, 0.4, 0.3, 0.25),
    "jpeg_compression": _levels("quality")(25, 18, 15, 10, 7),
}

KINDS = tuple(CIFAR_LEVELS)
TABLES: Mapping[LevelsName, Mapping[str, tuple[Settings, ...]]] = {"cifar": CIFAR_LEVELS, "imagenet": IMAGENET_LEVELS}


def levels_for(shape: tuple[int, ...]) -> LevelsName:
    """The table that suits images of this shape: ImageNet's from 96 pixels on."""
    return "imagenet" if min(shape[1:]) >= 96 else "cifar"


@dataclass(frozen=True)
class Frost:
    """Pictures of frost (each 3×H×W, 0..1) and where they are from."""

    pictures: Sequence[Tensor]
    origin: str


def frost_pictures() -> Frost:
    """The published pictures if the package imagecorruptions is there (extra `shift`), drawn ones otherwise.

    Of six published pictures the benchmark's program uses the first five.
    """
    package = find_spec("imagecorruptions")
    if package is not None and package.origin is not None:
        files = sorted((Path(package.origin).parent / "frost").glob("frost[1-5].*"))
        if len(files) == 5:
            pictures = [decode(file, channels=3, resize=None).float() / 255 for file in files]
            return Frost(pictures, "pictures of the package imagecorruptions")
    return Frost([drawn_frost(number) for number in range(5)], "drawn: not the published pictures")


def drawn_frost(number: int, side: int = 512) -> Tensor:
    """A texture of bright, bluish ridges such as ice has, with about the brightness of the published pictures."""
    generator = seeded("frost", number)
    folds, grain = (plasma(1, side, decay, generator)[0, :side, :side] for decay in (1.3, 1.1))
    ridges = 1 - (8 * folds.mul(torch.pi).sin()).sin().abs() + grain
    ridges = (ridges - ridges.mean()) / ridges.std()
    mean = 0.37 + 0.1 * number
    tint = torch.tensor([mean, mean + 0.08, mean + 0.13]).view(3, 1, 1)
    picture: Tensor = (tint + 0.13 * ridges).clamp(0, 1)
    return picture


def corrupted(
    images_NCHW: Tensor,
    kind: str,
    level: int,
    *,
    levels: LevelsName = "cifar",
    seed: int = 0,
    frost: Frost | None = None,
    first: int = 0,
) -> Tensor:
    """These images (uint8) under one kind of corruption at a level from 1 to 5, as uint8.

    What an image gets depends on the seed, the kind, the level and its place; `first` is that of the first image.
    """
    if kind not in KINDS or level not in LEVELS:
        raise UserError(f"there is no corruption {kind} at level {level}; kinds are {', '.join(KINDS)}, levels 1 to 5")
    settings = dict(TABLES[levels][kind][level - 1])
    if kind == "frost":
        settings["pictures"] = (frost or frost_pictures()).pictures
    operator: Callable[..., Tensor] = getattr(operators, kind)
    pieces = []
    for number, piece in enumerate(images_NCHW.split(_PIECE)):
        values = piece.float() / 255
        drawn = (seeded(seed, "shift", kind, level, first + number * _PIECE),) if kind in _DRAWN else ()
        # A little more than the exact value, for what is cut off must not take a whole step away by rounding.
        pieces.append((operator(values, *drawn, **settings).clamp_(0, 1) * 255 + 1e-3).to(torch.uint8))
    return torch.cat(pieces)


@dataclass(frozen=True, kw_only=True)
class ShiftedImages:
    """Images that are corrupted as they are read. What is drawn depends on the first image of each reading."""

    images: Inputs
    kind: str
    level: int
    levels: LevelsName
    seed: int = 0
    frost: Frost | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.images.shape

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index_B: Tensor) -> Tensor:
        if not len(index_B):
            return self.images.read(index_B)
        return corrupted(
            self.images.read(index_B).cpu(), self.kind, self.level,
            levels=self.levels, seed=self.seed, frost=self.frost, first=int(index_B[0]),
        )  # fmt: skip

    def take(self, index_n: Tensor) -> "ShiftedImages":
        return replace(self, images=self.images.take(index_n))

    def signature(self) -> bytes:
        name = (self.kind, self.level, self.levels, self.seed, None if self.frost is None else self.frost.origin)
        return hashlib.sha256(self.images.signature() + repr(name).encode()).digest()
