"""Filters and geometric transforms of image batches.

Shapes: B images, C channels, H by W pixels.
"""

import math
from typing import Literal

import torch
from torch import Generator, Tensor
from torch.nn.functional import conv2d, grid_sample, interpolate

Edges = Literal["nearest", "reflect", "mirror"]

_LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue


def gaussian_weights(reach: int, deviation: float) -> Tensor:
    """Gaussian weights at -reach..reach, which sum to 1."""
    weights = torch.exp(-torch.arange(-reach, reach + 1.0).square() / (2 * deviation**2))
    return weights / weights.sum()


def gaussian_filter(images: Tensor, deviation: float, *, edges: Edges = "nearest", truncate: float = 4) -> Tensor:
    """Gaussian blur over rows and columns, truncated at `truncate` standard deviations.

    Each axis is one matrix product, so that the kernel may be larger than the image.
    """
    reach = int(truncate * deviation + 0.5)
    if not reach:
        return images
    weights = gaussian_weights(reach, deviation)

    def matrix(size: int) -> Tensor:
        source = folded(torch.arange(size).unsqueeze(1) + torch.arange(-reach, reach + 1), size, edges)
        return torch.zeros(size, size).scatter_add_(1, source, weights.expand(size, -1))

    return matrix(images.shape[2]) @ images @ matrix(images.shape[3]).T


def correlated(images: Tensor, kernel: Tensor) -> Tensor:
    """Correlate each channel with a kernel of odd size; images are mirrored at their outermost pixels."""
    height, width = images.shape[2:]
    down, right = (side // 2 for side in kernel.shape)
    rows = folded(torch.arange(-down, height + down), height, "mirror")
    columns = folded(torch.arange(-right, width + right), width, "mirror")
    padded = images[:, :, rows][..., columns].flatten(0, 1).unsqueeze(1)
    return conv2d(padded, kernel[None, None]).view_as(images)


def folded(index: Tensor, size: int, edges: Edges) -> Tensor:
    """Map indices outside 0..size-1 back inside: to the edge, or mirrored with (reflect) or without (mirror) it."""
    if edges == "nearest" or size == 1:
        return index.clamp(0, size - 1)
    if edges == "mirror":
        index = index.remainder(2 * size - 2)
        return torch.minimum(index, 2 * size - 2 - index)
    index = index.remainder(2 * size)
    return torch.minimum(index, 2 * size - 1 - index)


def zoomed(images: Tensor, factor: float) -> Tensor:
    """Enlarge the centre of each image to the full size by bilinear interpolation with aligned corners."""
    height, width = images.shape[2:]
    sizes = [math.ceil(side / factor) for side in (height, width)]
    top, left = ((side - size) // 2 for side, size in zip((height, width), sizes, strict=True))
    middle = images[:, :, top : top + sizes[0], left : left + sizes[1]]
    large = [round(size * factor) for size in sizes]
    enlarged = interpolate(middle, size=large, mode="bilinear", align_corners=True)
    top, left = ((size - side) // 2 for side, size in zip((height, width), large, strict=True))
    return enlarged[:, :, top : top + height, left : left + width]


def plasma(batch: int, side: int, decay: float, generator: Generator) -> Tensor:
    """Plasma fractals in 0..1 by the diamond-square algorithm on a torus: batch × S × S, S a power of two ≥ side.

    A new point is the mean of its four neighbours plus uniform noise in ±a², where a is divided by `decay` with each
    halving of the grid; the square is that of the published program.
    """
    size = 1 << max(1, math.ceil(math.log2(side)))
    cloud = torch.zeros(batch, size, size)
    step, noise = size, 100.0

    def settled(sums: Tensor) -> Tensor:
        return sums / 4 + noise * noise * (2 * torch.rand(sums.shape, generator=generator) - 1)

    while step >= 2:
        half = step // 2
        corners = cloud[:, ::step, ::step]
        beside = corners + corners.roll(-1, 2)
        cloud[:, half::step, half::step] = settled(beside + beside.roll(-1, 1))
        middles = cloud[:, half::step, half::step]
        above = corners + corners.roll(-1, 1)
        cloud[:, half::step, ::step] = settled(middles + middles.roll(1, 2) + above)
        cloud[:, ::step, half::step] = settled(middles + middles.roll(1, 1) + beside)
        step, noise = half, noise / decay
    low = cloud.amin((1, 2), keepdim=True)
    return (cloud - low) / (cloud.amax((1, 2), keepdim=True) - low)


def grey(images: Tensor) -> Tensor:
    """Convert RGB images to one channel."""
    return images if images.shape[-3] == 1 else (images * torch.tensor(_LUMA).view(3, 1, 1)).sum(-3, keepdim=True)


def sampled(images: Tensor, rows: Tensor, columns: Tensor, *, edges: Literal["reflect", "mirror"]) -> Tensor:
    """Sample images at these positions (each B×H×W) by bilinear interpolation."""
    height, width = images.shape[2:]
    corners = edges == "mirror"  # mirrored at the centre of the outermost pixel instead of its outer edge
    pairs = ((columns, width), (rows, height))
    grid = torch.stack(
        [2 * at / max(1, size - 1) - 1 if corners else (2 * at + 1) / size - 1 for at, size in pairs], -1
    )
    return grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=corners)
