"""Common image corruptions: 15 kinds at 5 levels of severity.

The kinds and both tables of levels are those of CIFAR-10-C and ImageNet-C (Hendrycks and Dietterich, "Benchmarking
Neural Network Robustness to Common Corruptions and Perturbations", 2019; the programs make_cifar_c.py and
make_imagenet_c.py of their repository hendrycks/robustness). The CIFAR levels are milder and meant for images of about
32 pixels, the ImageNet levels for about 224.

Deviations from the published files: random draws differ, motion blur does not use ImageMagick, and frost may use
generated textures (`frost_textures`). For a comparison with published results on CIFAR-10-C, use the published arrays
(`selfadapt.data.sources.builtin.cifar10c`).

Shapes: N images, C channels, H by W pixels.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from selfadapt.core.errors import UserError
from selfadapt.core.rng import seeded
from selfadapt.data.imagenet_c import operators
from selfadapt.data.imagenet_c.filters import plasma
from selfadapt.data.images.decode import decode
from selfadapt.data.inputs import InputKind, Inputs

LEVELS = (1, 2, 3, 4, 5)
LevelsName = Literal["cifar", "imagenet"]

_RANDOM = (
    "gaussian_noise", "shot_noise", "impulse_noise", "glass_blur", "motion_blur", "snow", "frost", "fog",
    "elastic_transform",
)  # fmt: skip
_BATCH = 500  # images that share a random stream; another value would change the random draws


_SIDE = 244 / 224  # the published program uses 244 for a side of 224

# Parameter names, and the five levels of CIFAR-10-C and of ImageNet-C.
_LEVELS: Mapping[str, tuple[str, tuple[Any, ...], tuple[Any, ...]]] = {
    "gaussian_noise": ("deviation", (0.04, 0.06, 0.08, 0.09, 0.10), (0.08, 0.12, 0.18, 0.26, 0.38)),
    "shot_noise": ("photons", (500, 250, 100, 75, 50), (60, 25, 12, 5, 3)),
    "impulse_noise": ("amount", (0.01, 0.02, 0.03, 0.05, 0.07), (0.03, 0.06, 0.09, 0.17, 0.27)),
    "defocus_blur": (
        "radius edge",
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    ),
    "glass_blur": (
        "deviation reach rounds",
        ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    ),
    "motion_blur": (
        "radius deviation",
        ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    ),
    "zoom_blur": (
        "furthest step",
        ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    ),
    "snow": (
        "mean deviation zoom least radius blur keep",
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
    ),
    "frost": (
        "keep frosted scale",
        ((1, 0.2, 0.2), (1, 0.3, 0.2), (0.9, 0.4, 0.2), (0.85, 0.4, 0.2), (0.75, 0.45, 0.2)),
        ((1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)),
    ),
    "fog": (
        "density decay",
        ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    ),
    "brightness": ("more", (0.05, 0.1, 0.15, 0.2, 0.3), (0.1, 0.2, 0.3, 0.4, 0.5)),
    "contrast": ("keep", (0.75, 0.5, 0.4, 0.3, 0.15), (0.4, 0.3, 0.2, 0.1, 0.05)),
    "elastic_transform": (
        "bend smooth shear",
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
        (
            (2 * _SIDE, 0.7 * _SIDE, 0.1 * _SIDE),
            (2 * _SIDE, 0.08 * _SIDE, 0.2 * _SIDE),
            (0.05 * _SIDE, 0.01 * _SIDE, 0.02 * _SIDE),
            (0.07 * _SIDE, 0.01 * _SIDE, 0.02 * _SIDE),
            (0.12 * _SIDE, 0.01 * _SIDE, 0.02 * _SIDE),
        ),
    ),
    "pixelate": ("scale", (0.95, 0.9, 0.85, 0.75, 0.65), (0.6, 0.5, 0.4, 0.3, 0.25)),
    "jpeg_compression": ("quality", (80, 65, 58, 50, 40), (25, 18, 15, 10, 7)),
}
KINDS = tuple(_LEVELS)


def level_settings(kind: str, level: int, levels: LevelsName) -> dict[str, Any]:
    """Return the keyword arguments of a corruption at a level from 1 to 5."""
    names, cifar, imagenet = _LEVELS[kind]
    values = (cifar if levels == "cifar" else imagenet)[level - 1]
    return dict(zip(names.split(), values if isinstance(values, tuple) else (values,), strict=True))


def levels_for(shape: tuple[int, ...]) -> LevelsName:
    """Return the table of levels for images of this shape: ImageNet levels from 96 pixels on."""
    return "imagenet" if min(shape[1:]) >= 96 else "cifar"


@dataclass(frozen=True)
class Frost:
    """Images of frost (each 3×H×W, 0..1) and their origin."""

    textures: Sequence[Tensor]
    origin: str


def frost_textures() -> Frost:
    """Return the published images if the package imagecorruptions is installed (extra `shift`), else generated ones.

    The benchmark uses the first five of the six published images.
    """
    package = find_spec("imagecorruptions")
    if package is not None and package.origin is not None:
        files = sorted((Path(package.origin).parent / "frost").glob("frost[1-5].*"))
        if len(files) == 5:
            textures = [decode(file, channels=3, resize=None).float() / 255 for file in files]
            return Frost(textures, "images of the package imagecorruptions")
    return Frost([drawn_frost(number) for number in range(5)], "generated textures, not the published images")


def drawn_frost(number: int, side: int = 512) -> Tensor:
    """Generate a texture of bright, bluish ridges like ice, about as bright as the published images."""
    generator = seeded("frost", number)
    folds, grain = (plasma(1, side, decay, generator)[0, :side, :side] for decay in (1.3, 1.1))
    ridges = 1 - (8 * folds.mul(torch.pi).sin()).sin().abs() + grain
    ridges = (ridges - ridges.mean()) / ridges.std()
    mean = 0.37 + 0.1 * number
    tint = torch.tensor([mean, mean + 0.08, mean + 0.13]).view(3, 1, 1)
    texture: Tensor = (tint + 0.13 * ridges).clamp(0, 1)
    return texture


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
    """Apply one kind of corruption to uint8 images at a level from 1 to 5.

    Random draws depend on the seed, the kind, the level and the position of an image; `first` is the position of the
    first image.
    """
    if kind not in KINDS or level not in LEVELS:
        raise UserError(f"unknown corruption {kind} at level {level}; kinds are {', '.join(KINDS)}, levels 1 to 5")
    settings = level_settings(kind, level, levels)
    if kind == "frost":
        settings["textures"] = (frost or frost_textures()).textures
    operator: Callable[..., Tensor] = getattr(operators, kind)
    batches = []
    for number, images_BCHW in enumerate(images_NCHW.split(_BATCH)):
        values = images_BCHW.float() / 255
        generator = (seeded(seed, "shift", kind, level, first + number * _BATCH),) if kind in _RANDOM else ()
        # Conversion to uint8 truncates; the small offset keeps rounding errors from lowering a value by one.
        batches.append((operator(values, *generator, **settings).clamp_(0, 1) * 255 + 1e-3).to(torch.uint8))
    return torch.cat(batches)


@dataclass(frozen=True, kw_only=True)
class ShiftedImages:
    """Images that are corrupted when they are read. Random draws depend on the first position of each read."""

    kind: ClassVar[InputKind] = "images"
    images: Inputs
    corruption: str
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
            self.images.read(index_B).cpu(), self.corruption, self.level,
            levels=self.levels, seed=self.seed, frost=self.frost, first=int(index_B[0]),
        )  # fmt: skip

    def take(self, index_n: Tensor) -> "ShiftedImages":
        return replace(self, images=self.images.take(index_n))

    def signature(self) -> bytes:
        name = (self.corruption, self.level, self.levels, self.seed, None if self.frost is None else self.frost.origin)
        return hashlib.sha256(self.images.signature() + repr(name).encode()).digest()
