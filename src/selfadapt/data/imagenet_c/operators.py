"""The fifteen corruptions (Hendrycks and Dietterich, 2019) as functions of their parameters.

Each function takes images as floats in 0..1 (B×C×H×W, C is 1 or 3), its parameters, and a generator if it is random; it
returns floats, which the caller clips to 0..1. Lengths are in pixels unless stated otherwise. Random draws differ
between the images of a batch.

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
    """Poisson noise: `photons` is the expected number of photons of a white pixel."""
    return torch.poisson(images * photons, generator=generator) / photons


def impulse_noise(images: Tensor, generator: Generator, *, amount: float) -> Tensor:
    """Salt-and-pepper noise on each value, in equal parts."""
    drawn = torch.rand(images.shape, generator=generator)
    noisy = torch.where(drawn < amount / 2, torch.zeros(()), images)
    return torch.where((drawn >= amount / 2) & (drawn < amount), torch.ones(()), noisy)


# --- blur


def defocus_blur(images: Tensor, *, radius: float, edge: float) -> Tensor:
    """Mean over a disk whose edge is softened by a Gaussian of deviation `edge`, three or five pixels wide."""
    half, reach = (8, 1) if radius <= 8 else (int(radius), 2)
    line = torch.arange(-half, half + 1.0)
    disk = (line.square() + line.square().unsqueeze(1) <= radius**2).float()
    soft = gaussian_weights(reach, edge)
    kernel = correlated((disk / disk.sum())[None, None], torch.outer(soft, soft))[0, 0]
    unused = max(0, half - int(radius) - reach)  # rows and columns of zeros
    return correlated(images, kernel[unused : len(kernel) - unused, unused : len(kernel) - unused])


def glass_blur(images: Tensor, generator: Generator, *, deviation: float, reach: int, rounds: int) -> Tensor:
    """Gaussian blur, pixels replaced by near ones `rounds` times, and Gaussian blur again.

    The published program intends to swap two pixels, but overwrites the first before it reads it: pixel p becomes a
    copy of pixel q, and q stays. This is reproduced here. Pixels are visited from the last to the first, and q may have
    been replaced before; so the source of each pixel is found by following such links, by pointer doubling.
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
    """Blur along a line of 2 radius + 1 pixels at a random angle (degrees), with half-Gaussian weights."""
    height, width = images.shape[2:]
    angle = math.radians(angles[0]) + math.radians(angles[1] - angles[0]) * torch.rand(len(images), generator=generator)
    along = torch.arange(2 * radius + 1)
    weights = torch.exp(-along.square() / (2 * deviation**2))
    weights /= weights.sum()
    each = torch.arange(len(images)).view(-1, 1, 1)
    total = torch.zeros_like(images)
    for step, weight in zip(along.tolist(), weights.tolist(), strict=True):
        down, right = (torch.ceil(step * unit - 0.5).long() for unit in (angle.sin(), angle.cos()))
        rows = (torch.arange(height) + down.unsqueeze(1)).clamp_(0, height - 1)
        columns = (torch.arange(width) + right.unsqueeze(1)).clamp_(0, width - 1)
        moved = images.permute(0, 2, 3, 1)[each, rows.unsqueeze(2), columns.unsqueeze(1)]
        total += weight * moved.permute(0, 3, 1, 2)
    return total


def zoom_blur(images: Tensor, *, furthest: float, step: float) -> Tensor:
    """Mean of the image and of its zoomed versions, from factor 1 up to but not including `furthest`."""
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
    """Flakes (noise above `least`, zoomed and motion-blurred) on an image with reduced contrast."""
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
    textures: Sequence[Tensor],
) -> Tensor:
    """Add a random crop of a random image of frost (C×H×W, 0..1, scaled by `scale`)."""
    channels, height, width = images.shape[1:]
    scaled = [_scaled(texture, scale, height, width, channels) for texture in textures]
    crops = []
    for which, down, right in zip(
        torch.randint(len(scaled), (len(images),), generator=generator).tolist(),
        *torch.rand(2, len(images), generator=generator).tolist(),
        strict=True,
    ):
        texture = scaled[which]
        top = int(down * (texture.shape[1] - height + 1))
        left = int(right * (texture.shape[2] - width + 1))
        crops.append(texture[:, top : top + height, left : left + width])
    return keep * images + frosted * torch.stack(crops)


def fog(images: Tensor, generator: Generator, *, density: float, decay: float) -> Tensor:
    """Add plasma clouds, then rescale so that the brightest value stays the same."""
    brightest = images.amax((1, 2, 3), keepdim=True)
    height, width = images.shape[2:]
    clouds = plasma(len(images), max(height, width), decay, generator)[:, :height, :width]
    return (images + density * clouds.unsqueeze(1)) * brightest / (brightest + density)


# --- digital


def brightness(images: Tensor, *, more: float) -> Tensor:
    """Raise the value channel of HSV: colours keep their proportions, black becomes grey."""
    value = images.amax(1, keepdim=True)
    raised = (value + more).clamp(0, 1)
    return torch.where(value > 0, images * (raised / value.clamp_min(1e-12)), raised)


def contrast(images: Tensor, *, keep: float) -> Tensor:
    """Move each value towards the mean of its image and channel."""
    means = images.mean((2, 3), keepdim=True)
    return means + keep * (images - means)


def elastic_transform(images: Tensor, generator: Generator, *, bend: float, smooth: float, shear: float) -> Tensor:
    """An affine map that moves three points by up to `shear`, then a smooth displacement field.

    The displacements are uniform noise in ±1, smoothed by a Gaussian of deviation `smooth` and multiplied by `bend`.
    All three are relative to the shorter side of the image.
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
    """Downscale by box averages, then upscale to the original size."""
    from PIL import Image

    height, width = images.shape[2:]
    small, box = (max(1, int(width * scale)), max(1, int(height * scale))), Image.Resampling.BOX
    return _from_pil(image.resize(small, box).resize((width, height), box) for image in _to_pil(images))


def jpeg_compression(images: Tensor, *, quality: int) -> Tensor:
    from PIL import Image

    decoded = []
    for image in _to_pil(images):
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        decoded.append(Image.open(file))
    return _from_pil(decoded)


def _scaled(texture: Tensor, scale: float, height: int, width: int, channels: int) -> Tensor:
    """Resize a texture by this factor, or by a larger one if it would not cover the image otherwise."""
    scale = max(scale, height / texture.shape[1], width / texture.shape[2])
    size = [max(least, round(side * scale)) for least, side in zip((height, width), texture.shape[1:], strict=True)]
    small = interpolate(texture.unsqueeze(0), size=size, mode="bilinear", align_corners=False)[0]
    return grey(small) if channels == 1 else small


def _sheared(images: Tensor, most: float, generator: Generator) -> Tensor:
    """Apply the affine map that moves three corners of a central square by random offsets."""
    batch, _, height, width = images.shape
    middle = torch.tensor([width // 2, height // 2], dtype=torch.float32)
    arm = min(height, width) // 3
    points = middle + arm * torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    moved = points + most * (2 * torch.rand(batch, 3, 2, generator=generator) - 1)
    # Sampling needs the inverse map, from target to source: [x y 1] @ back = [x' y'].
    back = torch.linalg.solve(torch.cat([moved, torch.ones(batch, 3, 1)], 2), points.expand(batch, -1, -1))
    rows, columns = torch.meshgrid(torch.arange(float(height)), torch.arange(float(width)), indexing="ij")
    places = torch.stack([columns, rows, torch.ones_like(rows)], 2).view(1, -1, 3) @ back
    return sampled(
        images, places[..., 1].view(batch, height, width), places[..., 0].view(batch, height, width), edges="mirror"
    )


def _to_pil(images: Tensor) -> list["Image"]:
    from PIL import Image

    values = (images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return [Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels) for pixels in values]


def _from_pil(images: "Iterable[Image]") -> Tensor:
    values = torch.from_numpy(np.stack([np.asarray(image) for image in images]))
    values = values.unsqueeze(1) if values.dim() == 3 else values.permute(0, 3, 1, 2)
    return values.float() / 255
