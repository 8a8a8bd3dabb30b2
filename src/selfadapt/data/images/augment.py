"""Random augmentation of image batches, on the device of the batch.

Random numbers come from a CPU generator, so that all devices draw the same ones.

Shapes: B images, C channels, H by W pixels, T attempts.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from selfadapt.core.device import to_device
from selfadapt.core.errors import UserError
from selfadapt.data.images.transforms import as_floats, crop, gaussian_blur, greyscale, jitter, resized_crop, rotate

Augment = Callable[[Tensor, torch.Generator], Tensor]
AugmentName = Literal[
    "none", "crop", "crop-flip", "shift-flip", "rotate-crop", "resized-crop", "self-supervised", "self-supervised-blur"
]
_MOST_DEGREES = 15.0
_DRAWS = 10  # attempts to draw a box that fits
_WIDEST = 4 / 3  # largest aspect ratio of a box; the smallest is 3:4
_SMALLEST_AREA = {"resized-crop": 0.08, "self-supervised": 0.2, "self-supervised-blur": 0.2}  # of random resized crops
_SWITCHES = ("no-flip", "no-jitter", "no-grey")


def smallest_area(name: str) -> float | None:
    """Return the smallest area share of the augmentation's random resized crops; None if it has no such crops."""
    return _SMALLEST_AREA.get(name.partition(",")[0])


def augmentation_by_name(name: str, height: int, *, keep_size: bool = False, cropped: bool = False) -> Augment | None:
    """Return the augmentation of this name for images of this height; None for "none".

    crop, crop-flip     the paper's, for small images: pad by an eighth of the height (4 of 32 pixels), crop, flip
    shift-flip          for few epochs: shift by up to a sixteenth of the height with reflection padding, flip
    rotate-crop         for house numbers, as in the authors' program: rotate by up to 15 degrees, then crop
    resized-crop        the usual one for ImageNet: random resized crop to 7/8 of the size, flip
    self-supervised     the paper's, for pre-training: random resized crop, flip, colour jitter, greyscale;
                        self-supervised-blur adds blur, for ImageNet

    Operations of self-supervised can be left out, as in self-supervised,no-grey,no-jitter,no-flip.

    Args:
        name: Name of the augmentation.
        height: Height of the images.
        keep_size: Resize the crops of resized-crop to the full size of the images.
        cropped: The images are random resized crops already; apply only the remaining operations.

    Raises:
        UserError: The name is unknown.
    """
    name, *without = name.split(",")
    if name not in get_args(AugmentName):
        raise UserError(f"--augment {name!r} is not known; choose one of {', '.join(get_args(AugmentName))}")
    unknown = [word for word in without if word not in _SWITCHES or not name.startswith("self-supervised")]
    if unknown:
        raise UserError(f"--augment {name},{unknown[0]} is not known; self-supervised accepts {', '.join(_SWITCHES)}")
    if name == "none":
        return None
    if name.startswith("self-supervised"):
        flip, jitter, grey = (word not in without for word in _SWITCHES)
        blur = name.endswith("blur")
        return partial(self_supervised, crop=not cropped, flip=flip, jitter=jitter, grey=grey, blur=blur)
    if name == "resized-crop" and cropped:
        return random_flip
    if name == "resized-crop":
        size = None if keep_size else (height * 7 // 8, height * 7 // 8)
        return partial(random_resized_crop, size=size, flip=True)
    padding = max(1, height // (16 if name == "shift-flip" else 8))

    def crop_and_flip(images_BCHW: Tensor, generator: torch.Generator) -> Tensor:
        if name == "rotate-crop":
            images_BCHW = random_rotation(images_BCHW, _MOST_DEGREES, generator)
        images_BCHW = random_crop(images_BCHW, padding, generator, reflect=name == "shift-flip")
        return random_flip(images_BCHW, generator) if name.endswith("flip") else images_BCHW

    return crop_and_flip


def self_supervised(
    images_BCHW: Tensor,
    generator: torch.Generator,
    *,
    crop: bool = True,
    flip: bool = True,
    jitter: bool = True,
    grey: bool = True,
    blur: bool = False,
) -> Tensor:
    """The recipe of MoCo v2: resized crop from 0.2 of the area, flip, jitter (p 0.8), grey (p 0.2), blur (p 0.5)."""
    count, channels, height, width = images_BCHW.shape
    if crop:
        smallest = _SMALLEST_AREA["self-supervised"]
        images_BCHW = random_resized_crop(images_BCHW, generator, smallest=smallest, flip=flip)
    else:
        images_BCHW = as_floats(random_flip(images_BCHW, generator) if flip else images_BCHW)
    if channels == 3 and jitter:
        jittered = to_device(_chosen(count, 0.8, generator), images_BCHW.device)
        images_BCHW[jittered] = random_jitter(images_BCHW[jittered], generator)
    if channels == 3 and grey:
        greyed = to_device(_chosen(count, 0.2, generator), images_BCHW.device)
        images_BCHW[greyed] = greyscale(images_BCHW[greyed])
    if blur:
        blurred = to_device(_chosen(count, 0.5, generator), images_BCHW.device)
        sigma = torch.empty(len(blurred)).uniform_(0.1, 2.0, generator=generator)
        radius = min(max(1, height // 20), min(height, width) - 1)
        images_BCHW[blurred] = gaussian_blur(images_BCHW[blurred], sigma, radius=radius)
    return images_BCHW


def _chosen(count: int, probability: float, generator: torch.Generator) -> Tensor:
    return (torch.rand(count, generator=generator) < probability).nonzero().flatten()


def random_crop(images_BCHW: Tensor, padding: int, generator: torch.Generator, *, reflect: bool = False) -> Tensor:
    """Pad all sides with zeros or by reflection, then cut a window of the original size at a random position."""
    count, _, height, width = images_BCHW.shape
    if reflect:
        padding = min(padding, height - 1, width - 1)  # the limit of reflection padding
    top_B = torch.randint(2 * padding + 1, (count,), generator=generator)
    left_B = torch.randint(2 * padding + 1, (count,), generator=generator)
    padded = pad(as_floats(images_BCHW), [padding] * 4, "reflect") if reflect else pad(images_BCHW, [padding] * 4)
    return crop(padded, top_B, left_B, height, width)


def random_flip(images_BCHW: Tensor, generator: torch.Generator) -> Tensor:
    """Flip each image horizontally with probability 0.5."""
    flipped_B = to_device(torch.rand(len(images_BCHW), generator=generator) < 0.5, images_BCHW.device)
    return torch.where(flipped_B[:, None, None, None], images_BCHW.flip(3), images_BCHW)


def random_resized_crop(
    images_BCHW: Tensor,
    generator: torch.Generator,
    *,
    size: tuple[int, int] | None = None,
    smallest: float = _SMALLEST_AREA["resized-crop"],
    flip: bool = False,
) -> Tensor:
    """Crop a box of random area and aspect ratio (3:4 to 4:3) and resize it to `size`, by default that of the image.

    With `flip`, half of the images are flipped.
    """
    count, _, height, width = images_BCHW.shape
    box = random_boxes(count, height, width, smallest, generator)
    flipped_B = torch.rand(count, generator=generator) < (0.5 if flip else 0.0)
    return resized_crop(images_BCHW, *box, size or (height, width), flipped_B)


def random_boxes(
    count: int, height: int, width: int, smallest: float, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw top, left, height and width of random boxes, as torchvision does.

    A box that does not fit is drawn again, up to ten times; after that, the largest central box with an allowed aspect
    ratio is used.
    """
    area_TB = torch.empty(_DRAWS, count).uniform_(smallest, 1.0, generator=generator) * height * width
    shape_TB = torch.empty(_DRAWS, count).uniform_(-math.log(_WIDEST), math.log(_WIDEST), generator=generator).exp()
    tall_TB, wide_TB = (area_TB / shape_TB).sqrt().round(), (area_TB * shape_TB).sqrt().round()
    fits_TB = (tall_TB > 0) & (tall_TB <= height) & (wide_TB > 0) & (wide_TB <= width)
    first_1B, fits_B = fits_TB.byte().argmax(0, keepdim=True), fits_TB.any(0)
    tall_B = torch.where(fits_B, tall_TB.gather(0, first_1B)[0], min(height, round(width * _WIDEST)))
    wide_B = torch.where(fits_B, wide_TB.gather(0, first_1B)[0], min(width, round(height * _WIDEST)))
    top_B = (torch.rand(count, generator=generator) * (height - tall_B + 1)).floor()
    left_B = (torch.rand(count, generator=generator) * (width - wide_B + 1)).floor()
    top_B = torch.where(fits_B, top_B, (height - tall_B).div(2, rounding_mode="floor"))
    left_B = torch.where(fits_B, left_B, (width - wide_B).div(2, rounding_mode="floor"))
    return top_B, left_B, tall_B, wide_B


def random_jitter(images_BCHW: Tensor, generator: torch.Generator) -> Tensor:
    """Colour jitter (brightness, contrast and saturation by up to 0.4, hue by 0.1) in random order for each image."""
    count = len(images_BCHW)

    def factor(strength: float) -> Tensor:
        return torch.empty(count).uniform_(1 - strength, 1 + strength, generator=generator)

    strengths_4B = torch.stack([factor(0.4), factor(0.4), factor(0.4), factor(0.1) - 1])
    return jitter(images_BCHW, strengths_4B, torch.rand(count, 4, generator=generator).argsort(1))


def random_rotation(images_BCHW: Tensor, most: float, generator: torch.Generator) -> Tensor:
    return rotate(images_BCHW, torch.empty(len(images_BCHW)).uniform_(-most, most, generator=generator))


def beta(strength: float, generator: torch.Generator) -> float:
    """Draw from Beta(strength, strength), as g1 / (g1 + g2) of two Gamma draws."""
    gamma = torch._standard_gamma(torch.full((2,), strength, dtype=torch.float64), generator=generator)
    return float(gamma[0] / gamma.sum())
