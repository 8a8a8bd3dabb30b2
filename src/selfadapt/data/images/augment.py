"""Augmentation of whole batches, on the device where they are.

Each operator takes its parameters image by image, so that it can be compared with torchvision's on one image; the
`random_…` functions draw them. What is drawn comes from a generator on the CPU, so every device draws alike.

Shapes: B images, C channels, H by W pixels.
"""

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from selfadapt.core.errors import UserError

Augment = Callable[[Tensor, torch.Generator], Tensor]
_MOST_DEGREES = 15.0
_DRAWS = 10  # of a box that does not fit
_WIDEST = 4 / 3  # shape of a box, and 3:4 the narrowest
_SMALLEST_AREA = {"resized-crop": 0.08, "self-supervised": 0.2, "self-supervised-blur": 0.2}  # of random resized crops
_LEFT_OUT = ("no-flip", "no-jitter", "no-grey")
AugmentName = Literal[
    "none", "crop", "crop-flip", "shift-flip", "rotate-crop", "resized-crop", "self-supervised", "self-supervised-blur"
]


def smallest_area(name: str) -> float | None:
    """The least share of an image's area in the random resized crops of this augmentation; None if it has none."""
    return _SMALLEST_AREA.get(name.partition(",")[0])


def named_augment(name: str, height: int, *, keep_size: bool = False, cropped: bool = False) -> Augment | None:
    """The augmentation of this name, for images of this height. With `keep_size`, they stay as large as they are.

    With `cropped`, images are random resized crops already, and the rest is done.

    crop, crop-flip         the paper's for small images: pad an eighth of the height (4 pixels of 32), crop, mirror
    shift-flip              for few epochs: shift by up to a sixteenth, what comes in is mirrored; mirror
    rotate-crop             for house numbers, as in the program of SAT: turn by up to 15 degrees, then crop
    resized-crop            the usual one for ImageNet: a random part, brought to 7/8 of the size; mirror
    self-supervised         the paper's for pre-training: resized crop, mirror, colour jitter, grey; -blur for ImageNet

    Operators of the last can be left out one by one, down to the crop: self-supervised,no-grey,no-jitter,no-flip.
    """
    name, *without = name.split(",")
    if name not in get_args(AugmentName):
        raise UserError(f"--augment {name!r} is not known; choose one of {', '.join(get_args(AugmentName))}")
    odd = [word for word in without if word not in _LEFT_OUT or not name.startswith("self-supervised")]
    if odd:
        raise UserError(f"--augment {name},{odd[0]} is not known; {', '.join(_LEFT_OUT)} may follow self-supervised")
    if name == "none":
        return None
    if name.startswith("self-supervised"):
        flip, jitter, grey = (word not in without for word in _LEFT_OUT)
        blur = name.endswith("blur")
        return lambda images, generator: self_supervised(
            images, generator, crop=not cropped, flip=flip, jitter=jitter, grey=grey, blur=blur
        )
    if name == "resized-crop" and cropped:
        return random_flip
    if name == "resized-crop":
        if keep_size:
            return lambda images, generator: random_resized_crop(
                images, (images.shape[2], images.shape[3]), generator, flip=True
            )
        size = height * 7 // 8
        return lambda images, generator: random_resized_crop(images, (size, size), generator, flip=True)
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
    """MoCo v2's recipe: resized crop from 0.2 of the area, mirror, jitter (p 0.8), grey (p 0.2), blur (p 0.5)."""
    count, channels, height, width = images_BCHW.shape
    if crop:
        images_BCHW = random_resized_crop(
            images_BCHW, (height, width), generator, smallest=_SMALLEST_AREA["self-supervised"], flip=flip
        )
    else:
        images_BCHW = _floats(random_flip(images_BCHW, generator) if flip else images_BCHW)
    if channels == 3 and jitter:
        jittered = _chosen(count, 0.8, generator).to(images_BCHW.device)
        images_BCHW[jittered] = random_jitter(images_BCHW[jittered], generator)
    if channels == 3 and grey:
        greyed = _chosen(count, 0.2, generator).to(images_BCHW.device)
        images_BCHW[greyed] = greyscale(images_BCHW[greyed])
    if blur:
        blurred = _chosen(count, 0.5, generator).to(images_BCHW.device)
        sigma = torch.empty(len(blurred)).uniform_(0.1, 2.0, generator=generator)
        radius = min(max(1, height // 20), min(height, width) - 1)
        images_BCHW[blurred] = gaussian_blur(images_BCHW[blurred], sigma, radius=radius)
    return images_BCHW


def _chosen(count: int, probability: float, generator: torch.Generator) -> Tensor:
    return (torch.rand(count, generator=generator) < probability).nonzero().flatten()


def _floats(images_BCHW: Tensor) -> Tensor:
    return images_BCHW.float() / 255 if images_BCHW.dtype == torch.uint8 else images_BCHW


def random_crop(images_BCHW: Tensor, padding: int, generator: torch.Generator, *, reflect: bool = False) -> Tensor:
    """Pad all sides with black, or with what they mirror, and cut a window of the old size at a random place."""
    count, _, height, width = images_BCHW.shape
    if reflect:
        padding = min(padding, height - 1, width - 1)  # there is no more to mirror
    top_B = torch.randint(2 * padding + 1, (count,), generator=generator)
    left_B = torch.randint(2 * padding + 1, (count,), generator=generator)
    padded = pad(_floats(images_BCHW), [padding] * 4, "reflect") if reflect else pad(images_BCHW, [padding] * 4)
    return crop(padded, top_B, left_B, height, width)


def crop(images_BCHW: Tensor, top_B: Tensor, left_B: Tensor, height: int, width: int) -> Tensor:
    """A window of this size from each image, each at its own place."""
    windows = images_BCHW.unfold(2, height, 1).unfold(3, width, 1)  # every window there is, as a view
    device = images_BCHW.device
    return windows[torch.arange(len(images_BCHW), device=device), :, top_B.to(device), left_B.to(device)]


def random_flip(images_BCHW: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror each image left to right with probability one half."""
    flipped_B = (torch.rand(len(images_BCHW), generator=generator) < 0.5).to(images_BCHW.device)
    return torch.where(flipped_B[:, None, None, None], images_BCHW.flip(3), images_BCHW)


def random_resized_crop(
    images_BCHW: Tensor,
    size: tuple[int, int],
    generator: torch.Generator,
    *,
    smallest: float = _SMALLEST_AREA["resized-crop"],
    flip: bool = False,
) -> Tensor:
    """A part of random area and shape (3:4 to 4:3) of each image, brought to `size`; with `flip`, half are mirrored."""
    count, _, height, width = images_BCHW.shape
    box = random_boxes(count, height, width, smallest, generator)
    mirrored_B = torch.rand(count, generator=generator) < (0.5 if flip else 0.0)
    return resized_crop(images_BCHW, *box, size, mirrored_B)


def random_boxes(
    count: int, height: int, width: int, smallest: float, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Top, left, height and width of random boxes, drawn as torchvision draws them.

    A box that does not fit is drawn again, up to ten times; then the middle of the image has to do, as much of it as
    the shape allows.
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


def resized_crop(
    images_BCHW: Tensor,
    top_B: Tensor,
    left_B: Tensor,
    height_B: Tensor,
    width_B: Tensor,
    size: tuple[int, int],
    mirrored_B: Tensor | None = None,
) -> Tensor:
    """A box of each image, brought to `size` by linear interpolation (with a wider filter where it shrinks).

    Interpolation is linear in the pixels and separable, so it is two products with small matrices.
    """
    device = images_BCHW.device
    rows_BhH = _interpolation(top_B, height_B, images_BCHW.shape[2], size[0]).to(device)
    columns_BwW = _interpolation(left_B, width_B, images_BCHW.shape[3], size[1])
    if mirrored_B is not None:
        columns_BwW = torch.where(mirrored_B[:, None, None], columns_BwW.flip(1), columns_BwW)
    halfway = rows_BhH.unsqueeze(1) @ _floats(images_BCHW)
    return halfway @ columns_BwW.to(device).unsqueeze(1).transpose(2, 3)


def resized(images_BCHW: Tensor, size: int) -> Tensor:
    """Whole images brought to a square of this size."""
    height, width = images_BCHW.shape[2:]
    start, tall, wide = torch.tensor([[0], [height], [width]])  # one box for all images
    return resized_crop(images_BCHW, start, start, tall, wide, (size, size))


def _interpolation(start_B: Tensor, length_B: Tensor, size_in: int, size_out: int) -> Tensor:
    """B×out×in weights that read `length` pixels from `start` on as `size_out` pixels."""
    scale_B11 = (length_B.float() / size_out)[:, None, None]
    centre_Bo1 = (torch.arange(size_out) + 0.5)[None, :, None] * scale_B11
    place_11i = (torch.arange(size_in) + 0.5)[None, None, :]
    from_start_B1i = place_11i - start_B.float()[:, None, None]
    weights = (1 - (from_start_B1i - centre_Bo1).abs() / scale_B11.clamp_min(1)).clamp_min(0)
    inside = (from_start_B1i > 0) & (from_start_B1i < length_B.float()[:, None, None])
    weights = weights * inside
    return weights / weights.sum(2, keepdim=True)


def random_jitter(
    images_BCHW: Tensor,
    generator: torch.Generator,
    *,
    brightness: float = 0.4,
    contrast: float = 0.4,
    saturation: float = 0.4,
    hue: float = 0.1,
) -> Tensor:
    """Colour jitter with strengths and an order of each image's own."""
    count = len(images_BCHW)

    def factor(strength: float) -> Tensor:
        return torch.empty(count).uniform_(1 - strength, 1 + strength, generator=generator)

    strengths_4B = torch.stack([factor(brightness), factor(contrast), factor(saturation), factor(hue) - 1])
    return jitter(images_BCHW, strengths_4B, torch.rand(count, 4, generator=generator).argsort(1))


def jitter(images_BCHW: Tensor, strengths_4B: Tensor, order_B4: Tensor) -> Tensor:
    """Brightness, contrast, saturation and hue (0 to 3) adjusted in each image's order: the first of it comes first."""
    images_BCHW = _floats(images_BCHW).clone()
    adjustments = (adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue)
    for kinds_B in order_B4.unbind(1):
        for kind, adjust in enumerate(adjustments):
            own = (kinds_B == kind).nonzero().flatten()
            place = own.to(images_BCHW.device)
            images_BCHW[place] = adjust(images_BCHW[place], strengths_4B[kind, own])
    return images_BCHW


def _blend(images_BCHW: Tensor, other: Tensor | float, factor_B: Tensor) -> Tensor:
    factor = factor_B.to(images_BCHW.device)[:, None, None, None]
    return (images_BCHW * factor + (1 - factor) * other).clamp(0, 1)


def _luma(images_B3HW: Tensor) -> Tensor:
    red, green, blue = images_B3HW.unbind(1)
    return (0.2989 * red + 0.587 * green + 0.114 * blue).unsqueeze(1)


def greyscale(images_B3HW: Tensor) -> Tensor:
    images = _floats(images_B3HW)
    return _luma(images).expand_as(images)


def adjust_brightness(images_BCHW: Tensor, factor_B: Tensor) -> Tensor:
    return _blend(_floats(images_BCHW), 0.0, factor_B)


def adjust_contrast(images_B3HW: Tensor, factor_B: Tensor) -> Tensor:
    images = _floats(images_B3HW)
    return _blend(images, _luma(images).mean((1, 2, 3), keepdim=True), factor_B)


def adjust_saturation(images_B3HW: Tensor, factor_B: Tensor) -> Tensor:
    images = _floats(images_B3HW)
    return _blend(images, _luma(images), factor_B)


def adjust_hue(images_B3HW: Tensor, shift_B: Tensor) -> Tensor:
    """Turn the hue by `shift` of a full circle, through HSV and back."""
    images = _floats(images_B3HW)
    red, green, blue = images.unbind(1)
    value, least = images.amax(1), images.amin(1)
    chroma = value - least
    divisor = torch.where(chroma == 0, 1.0, chroma)
    sixth = torch.where(
        value == red,
        (green - blue) / divisor,
        torch.where(value == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )
    sixth = sixth + 6 * shift_B.to(images.device)[:, None, None]

    def channel(offset: int) -> Tensor:
        k = torch.remainder(sixth + offset, 6)
        return value - chroma * torch.minimum(k, 4 - k).clamp(0, 1)

    return torch.stack([channel(5), channel(3), channel(1)], dim=1)


def gaussian_blur(images_BCHW: Tensor, sigma_B: Tensor, radius: int) -> Tensor:
    """Blur with a Gaussian of each image's own width, cut off at `radius`; edges are mirrored."""
    images = _floats(images_BCHW)
    count, channels, height, width = images.shape
    offsets = torch.arange(-radius, radius + 1).float()
    kernel_Bk = torch.exp(-0.5 * (offsets / sigma_B.float().unsqueeze(1)) ** 2)
    kernel_Bk = (kernel_Bk / kernel_Bk.sum(1, keepdim=True)).to(images.device)
    padded = pad(images, [radius] * 4, mode="reflect")
    wide = sum(kernel_Bk[:, k, None, None, None] * padded[..., k : k + width] for k in range(2 * radius + 1))
    assert isinstance(wide, Tensor)
    tall = sum(kernel_Bk[:, k, None, None, None] * wide[:, :, k : k + height] for k in range(2 * radius + 1))
    assert isinstance(tall, Tensor)
    return tall.view(count, channels, height, width)


def rotate(images_BCHW: Tensor, degrees_B: Tensor) -> Tensor:
    """Turn each image counter-clockwise about its middle, by bilinear interpolation; the corners are black."""
    images = _floats(images_BCHW)
    _, _, height, width = images.shape
    angle_B = torch.deg2rad(degrees_B.float())
    cosine, sine = angle_B.cos(), angle_B.sin()
    zero = torch.zeros_like(cosine)
    matrix_B23 = torch.stack(
        [
            torch.stack([cosine, -sine * height / width, zero], dim=1),
            torch.stack([sine * width / height, cosine, zero], dim=1),
        ],
        dim=1,
    ).to(images.device)
    grid = torch.nn.functional.affine_grid(matrix_B23, list(images.shape), align_corners=False)
    return torch.nn.functional.grid_sample(images, grid, align_corners=False)


def random_rotation(images_BCHW: Tensor, most: float, generator: torch.Generator) -> Tensor:
    degrees_B = torch.empty(len(images_BCHW)).uniform_(-most, most, generator=generator)
    return rotate(images_BCHW, degrees_B)


def mixup(
    images_BCHW: Tensor, targets_BK: Tensor, strength: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Convex mixtures of each sample with another (Zhang et al., 2018), one share for the whole batch."""
    share = beta(strength, generator)
    partner_B = torch.randperm(len(images_BCHW), generator=generator).to(images_BCHW.device)
    images = _floats(images_BCHW)
    return torch.lerp(images[partner_B], images, share), torch.lerp(targets_BK[partner_B], targets_BK, share)


def beta(strength: float, generator: torch.Generator) -> float:
    """A draw from Beta(strength, strength): the share of one of two Gamma draws."""
    gamma = torch._standard_gamma(torch.full((2,), strength, dtype=torch.float64), generator=generator)
    return float(gamma[0] / gamma.sum())
