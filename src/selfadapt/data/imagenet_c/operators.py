"""Fifteen ways in which photos go bad (Hendrycks and Dietterich, 2019), as functions of their parameters.

Each takes images as floats within 0..1 (B×C×H×W, C one or three), its parameters, and a generator if it draws anything;
it gives floats, which the caller clips to 0..1. Lengths are in pixels unless said otherwise. All images of a batch are
treated at once; each gets draws of its own.

Shapes: B images, C channels, H by W pixels.
"""

import io
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn.functional import interpolate

from selfadapt.data.imagenet_c.filters import (
    correlated,
    gaussian_filter,
    gaussian_weights,
    grey,
    plasma,
    sampled,
    zoomed,
)

if TYPE_CHECKING:
    from PIL.Image import Image

# --- noise


def gaussian_noise(images: Tensor, generator: Generator, *, deviation: float) -> Tensor:
    return images + deviation * torch.randn(images.shape, generator=generator)


def shot_noise(images: Tensor, generator: Generator, *, photons: float) -> Tensor:
    """Light as a count of photons, so many of them for white."""
    return torch.poisson(images * photons, generator=generator) / photons


def impulse_noise(images: Tensor, generator: Generator, *, amount: float) -> Tensor:
    """Salt and pepper, value by value, half and half."""
    drawn = torch.rand(images.shape, generator=generator)
    noisy = torch.where(drawn < amount / 2, torch.zeros(()), images)
    return torch.where((drawn >= amount / 2) & (drawn < amount), torch.ones(()), noisy)


# --- blur


def defocus_blur(images: Tensor, *, radius: float, edge: float) -> Tensor:
    """The mean over a disk whose edge was softened by a Gaussian of this deviation, three or five pixels wide."""
    half, reach = (8, 1) if radius <= 8 else (int(radius), 2)
    line = torch.arange(-half, half + 1.0)
    disk = (line.square() + line.square().unsqueeze(1) <= radius**2).float()
    soft = gaussian_weights(reach, edge)
    kernel = correlated((disk / disk.sum())[None, None], torch.outer(soft, soft))[0, 0]
    unused = max(0, half - int(radius) - reach)  # rows and columns of zeros
    return correlated(images, kernel[unused : len(kernel) - unused, unused : len(kernel) - unused])


def glass_blur(images: Tensor, generator: Generator, *, deviation: float, reach: int, rounds: int) -> Tensor:
    """A Gaussian, pixels mixed with near ones `rounds` times, and the Gaussian again.

    The published program means to swap two pixels, but overwrites the first before it reads it: pixel p becomes a copy
    of pixel q, and q stays. So it is here. Pixels are visited from the last to the first. A copy of a pixel that was
    visited before is a copy of what that one had become, so each pixel's source is found by following such links, all
    at once, in as many doublings as it takes.
    """
    batch, channels, height, width = images.shape
    pixels = gaussian_filter(images, deviation).flatten(2)
    count = height * width
    here = torch.arange(count).view(height, width)
    inner = here[reach + 1 : height - reach + 1, reach + 1 : width - reach + 1].flatten()
    for _ in range(rounds):
        down, right = torch.randint(-reach, reach, (2, batch, len(inner)), generator=generator)
        other = inner + down * width + right
        visited = torch.zeros(count, dtype=torch.bool)
        visited[inner] = True
        # Links: p < count is pixel p after this round, count + q is pixel q before it.
        link = torch.arange(count, 2 * count).repeat(batch, 1)
        link[:, inner] = torch.where(visited[other] & (other > inner), other, count + other)
        link = torch.cat([link, torch.arange(count, 2 * count).expand(batch, -1)], 1)
        while bool((link[:, :count] < count).any()):
            link = link.gather(1, link)
        source = (link[:, :count] - count).unsqueeze(1).expand(-1, channels, -1)
        pixels = pixels.gather(2, source)
    return gaussian_filter(pixels.view_as(images), deviation)


def motion_blur(
    images: Tensor, generator: Generator, *, radius: int, deviation: float, angles: tuple[float, float] = (-45, 45)
) -> Tensor:
    """A trail at a random angle (degrees), which fades like half a Gaussian and is 2 radius + 1 pixels long."""
    height, width = images.shape[2:]
    angle = math.radians(angles[0]) + math.radians(angles[1] - angles[0]) * torch.rand(len(images), generator=generator)
    along = torch.arange(2 * radius + 1)
    weights = torch.exp(-along.square() / (2 * deviation**2))
    weights /= weights.sum()
    each = torch.arange(len(images)).view(-1, 1, 1)
    total = torch.zeros_like(images)
    for step, weight in zip(along.tolist(), weights.tolist(), strict=True):
        down, right = (torch.ceil(step * part - 0.5).long() for part in (angle.sin(), angle.cos()))
        rows = (torch.arange(height) + down.unsqueeze(1)).clamp_(0, height - 1)
        columns = (torch.arange(width) + right.unsqueeze(1)).clamp_(0, width - 1)
        moved = images.permute(0, 2, 3, 1)[each, rows.unsqueeze(2), columns.unsqueeze(1)]
        total += weight * moved.permute(0, 3, 1, 2)
    return total


def zoom_blur(images: Tensor, *, furthest: float, step: float) -> Tensor:
    """The mean of the image and of itself at each zoom from 1 up to `furthest`, which is left out."""
    factors = np.arange(1, furthest, step)
    total = images.clone()
    for factor in factors.tolist():
        total += zoomed(images, factor)
    return total / (len(factors) + 1)


# --- weather


def snow(
    images: Tensor,
    generator: Generator,
    *,
    mean: float,
    deviation: float,
    zoom: float,
    least: float,
    radius: int,
    blur: float,
    keep: float,
) -> Tensor:
    """Flakes (noise above `least`, zoomed and drawn out into trails) on an image that was made paler."""
    layer = (len(images), 1, *images.shape[2:])
    flakes = zoomed(torch.normal(mean, deviation, layer, generator=generator), zoom)
    flakes = torch.where(flakes < least, torch.zeros(()), flakes).clamp_(0, 1)
    flakes = motion_blur(flakes, generator, radius=radius, deviation=blur, angles=(-135, -45))
    pale = torch.maximum(images, grey(images) * 1.5 + 0.5)
    return keep * images + (1 - keep) * pale + flakes + flakes.flip(2, 3)


def frost(
    images: Tensor,
    generator: Generator,
    *,
    keep: float,
    frosted: float,
    scale: float,
    pictures: Sequence[Tensor],
) -> Tensor:
    """A random piece of a random picture of frost (C×H×W, 0..1, shrunk to `scale` of its size) over the image."""
    channels, height, width = images.shape[1:]
    shrunk = [_shrunk(picture, scale, height, width, channels) for picture in pictures]
    pieces = []
    for which, down, right in zip(
        torch.randint(len(shrunk), (len(images),), generator=generator).tolist(),
        *torch.rand(2, len(images), generator=generator).tolist(),
        strict=True,
    ):
        picture = shrunk[which]
        top = int(down * (picture.shape[1] - height + 1))
        left = int(right * (picture.shape[2] - width + 1))
        pieces.append(picture[:, top : top + height, left : left + width])
    return keep * images + frosted * torch.stack(pieces)


def fog(images: Tensor, generator: Generator, *, density: float, decay: float) -> Tensor:
    """Clouds of a fractal, and the whole darkened again so that the brightest value stays what it was."""
    brightest = images.amax((1, 2, 3), keepdim=True)
    height, width = images.shape[2:]
    clouds = plasma(len(images), max(height, width), decay, generator)[:, :height, :width]
    return (images + density * clouds.unsqueeze(1)) * brightest / (brightest + density)


# --- digital


def brightness(images: Tensor, *, more: float) -> Tensor:
    """The value of hue, saturation and value raised: the colours keep their proportions, black becomes grey."""
    value = images.amax(1, keepdim=True)
    raised = (value + more).clamp(0, 1)
    return torch.where(value > 0, images * (raised / value.clamp_min(1e-12)), raised)


def contrast(images: Tensor, *, keep: float) -> Tensor:
    """Every value drawn towards the mean of its image and channel."""
    means = images.mean((2, 3), keepdim=True)
    return means + keep * (images - means)


def elastic_transform(images: Tensor, generator: Generator, *, bend: float, smooth: float, shear: float) -> Tensor:
    """An affine map that moves three points by up to `shear`, then a smooth field of shifts. All by the image's side.

    The shifts are uniform noise within ±1, smoothed by a Gaussian of deviation `smooth` and multiplied by `bend`.
    """
    batch, _, height, width = images.shape
    side = min(height, width)
    bent = _sheared(images, shear * side, generator) if shear else images
    if not bend:
        return bent
    field = 2 * torch.rand(batch, 2, height, width, generator=generator) - 1
    field = bend * side * gaussian_filter(field, smooth * side, edges="reflect", truncate=3)
    rows = torch.arange(height).view(-1, 1) + field[:, 0]
    columns = torch.arange(width) + field[:, 1]
    return sampled(bent, rows, columns, edges="reflect")


def pixelate(images: Tensor, *, scale: float) -> Tensor:
    """Shrunk by means over boxes, and enlarged to its size again."""
    from PIL import Image

    height, width = images.shape[2:]
    small, box = (max(1, int(width * scale)), max(1, int(height * scale))), Image.Resampling.BOX
    shrunk = (picture.resize(small, box).resize((width, height), box) for picture in _pictures(images))
    return _values(shrunk, like=images)


def jpeg_compression(images: Tensor, *, quality: int) -> Tensor:
    from PIL import Image

    decoded = []
    for picture in _pictures(images):
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=quality)
        decoded.append(Image.open(file))
    return _values(decoded, like=images)


def _shrunk(picture: Tensor, scale: float, height: int, width: int, channels: int) -> Tensor:
    """A picture at this scale, or a larger one if it would not cover an image otherwise."""
    scale = max(scale, height / picture.shape[1], width / picture.shape[2])
    size = [max(least, round(side * scale)) for least, side in zip((height, width), picture.shape[1:], strict=True)]
    small = interpolate(picture.unsqueeze(0), size=size, mode="bilinear", align_corners=False)[0]
    return grey(small) if channels == 1 else small


def _sheared(images: Tensor, most: float, generator: Generator) -> Tensor:
    """The affine map that takes three points of a square in the middle to where they were moved at random."""
    batch, _, height, width = images.shape
    middle = torch.tensor([width // 2, height // 2], dtype=torch.float32)
    arm = min(height, width) // 3
    points = middle + arm * torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    moved = points + most * (2 * torch.rand(batch, 3, 2, generator=generator) - 1)
    # From where a point lands to where it comes from, as the sampling needs it: [x y 1] @ back = [x' y'].
    back = torch.linalg.solve(torch.cat([moved, torch.ones(batch, 3, 1)], 2), points.expand(batch, -1, -1))
    rows, columns = torch.meshgrid(torch.arange(float(height)), torch.arange(float(width)), indexing="ij")
    places = torch.stack([columns, rows, torch.ones_like(rows)], 2).view(1, -1, 3) @ back
    return sampled(
        images, places[..., 1].view(batch, height, width), places[..., 0].view(batch, height, width), edges="mirror"
    )


def _pictures(images: Tensor) -> list["Image"]:
    from PIL import Image

    values = (images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return [Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels) for pixels in values]


def _values(pictures: "Iterable[Image]", like: Tensor) -> Tensor:
    values = torch.from_numpy(np.stack([np.asarray(picture) for picture in pictures]))
    values = values.unsqueeze(1) if values.dim() == 3 else values.permute(0, 3, 1, 2)
    return values.float() / 255
