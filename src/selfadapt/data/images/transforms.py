"""Deterministic transforms of image batches, on the device of the batch.

Parameters are given for each image, so that each transform can be compared with torchvision's on a single image.

Shapes: B images, C channels, H by W pixels.
"""

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, pad

from selfadapt.core.device import to_device


def as_floats(images_BCHW: Tensor) -> Tensor:
    """Scale uint8 images to floats in 0..1; return floats unchanged."""
    return images_BCHW.float() / 255 if images_BCHW.dtype == torch.uint8 else images_BCHW


def crop(images_BCHW: Tensor, top_B: Tensor, left_B: Tensor, height: int, width: int) -> Tensor:
    """Cut a window of this size from each image at its own position."""
    windows = images_BCHW.unfold(2, height, 1).unfold(3, width, 1)  # all windows, as a view
    top_B, left_B = to_device(torch.stack([top_B, left_B]), images_BCHW.device)
    return windows[torch.arange(len(images_BCHW), device=images_BCHW.device), :, top_B, left_B]


def resized_crop(
    images_BCHW: Tensor,
    top_B: Tensor,
    left_B: Tensor,
    height_B: Tensor,
    width_B: Tensor,
    size: tuple[int, int],
    flipped_B: Tensor | None = None,
) -> Tensor:
    """Crop a box of each image and resize it to `size` by antialiased bilinear interpolation.

    Bilinear interpolation is linear in the pixels and separable, so it is two products with small matrices.
    """
    flips_B = torch.zeros_like(top_B) if flipped_B is None else flipped_B
    drawn = torch.stack([values_B.float() for values_B in (top_B, left_B, height_B, width_B, flips_B)])
    top_B, left_B, height_B, width_B, flips_B = to_device(drawn, images_BCHW.device)
    rows_BhH = _interpolation(top_B, height_B, images_BCHW.shape[2], size[0])
    columns_BwW = _interpolation(left_B, width_B, images_BCHW.shape[3], size[1])
    if flipped_B is not None:
        columns_BwW = torch.where(flips_B[:, None, None] > 0, columns_BwW.flip(1), columns_BwW)
    halfway = rows_BhH.unsqueeze(1) @ as_floats(images_BCHW)
    return halfway @ columns_BwW.unsqueeze(1).transpose(2, 3)


def resized(images_BCHW: Tensor, size: int) -> Tensor:
    """Resize whole images to a square of this size."""
    height, width = images_BCHW.shape[2:]
    start, tall, wide = torch.tensor([[0], [height], [width]])  # one box for all images
    return resized_crop(images_BCHW, start, start, tall, wide, (size, size))


def _interpolation(start_B: Tensor, length_B: Tensor, size_in: int, size_out: int) -> Tensor:
    """Weights (B×out×in) that resample `length` pixels from `start` on to `size_out` pixels, on their device."""
    device = start_B.device
    scale_B11 = (length_B / size_out)[:, None, None]
    centre_Bo1 = (torch.arange(size_out, device=device) + 0.5)[None, :, None] * scale_B11
    place_11i = (torch.arange(size_in, device=device) + 0.5)[None, None, :]
    from_start_B1i = place_11i - start_B[:, None, None]
    weights = (1 - (from_start_B1i - centre_Bo1).abs() / scale_B11.clamp_min(1)).clamp_min(0)
    inside = (from_start_B1i > 0) & (from_start_B1i < length_B[:, None, None])
    weights = weights * inside
    return weights / weights.sum(2, keepdim=True)


def rotate(images_BCHW: Tensor, degrees_B: Tensor) -> Tensor:
    """Rotate each image counter-clockwise about its centre by bilinear interpolation; corners are black."""
    images = as_floats(images_BCHW)
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
    )
    grid = affine_grid(to_device(matrix_B23, images.device), list(images.shape), align_corners=False)
    return grid_sample(images, grid, align_corners=False)


def gaussian_blur(images_BCHW: Tensor, sigma_B: Tensor, radius: int) -> Tensor:
    """Blur images with Gaussians of individual widths, truncated at `radius`; edges are mirrored."""
    images = as_floats(images_BCHW)
    height, width = images.shape[2:]
    offsets = torch.arange(-radius, radius + 1).float()
    kernel_Bk = torch.exp(-0.5 * (offsets / sigma_B.float().unsqueeze(1)) ** 2)
    kernel_Bk = to_device(kernel_Bk / kernel_Bk.sum(1, keepdim=True), images.device)
    padded = pad(images, [radius] * 4, mode="reflect")
    taps = range(2 * radius + 1)
    zero = torch.zeros((), device=images.device)
    rows = sum((kernel_Bk[:, k, None, None, None] * padded[..., k : k + width] for k in taps), zero)
    return sum((kernel_Bk[:, k, None, None, None] * rows[:, :, k : k + height] for k in taps), zero)


def greyscale(images_B3HW: Tensor) -> Tensor:
    images = as_floats(images_B3HW)
    return _luma(images).expand_as(images)


def jitter(images_BCHW: Tensor, strengths_4B: Tensor, order_B4: Tensor) -> Tensor:
    """Adjust brightness, contrast, saturation and hue (0 to 3) in the order given for each image."""
    images_BCHW = as_floats(images_BCHW).clone()
    adjustments = (adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue)
    chosen = [(kinds_B == kind).nonzero().flatten() for kinds_B in order_B4.unbind(1) for kind in range(4)]
    indices = to_device(torch.cat(chosen), images_BCHW.device).split([len(index) for index in chosen])
    strengths_4B = to_device(strengths_4B, images_BCHW.device)
    for number, index in enumerate(indices):
        kind = number % 4
        images_BCHW[index] = adjustments[kind](images_BCHW[index], strengths_4B[kind].index_select(0, index))
    return images_BCHW


def adjust_brightness(images_BCHW: Tensor, factor_B: Tensor) -> Tensor:
    return _blend(as_floats(images_BCHW), 0.0, factor_B)


def adjust_contrast(images_B3HW: Tensor, factor_B: Tensor) -> Tensor:
    images = as_floats(images_B3HW)
    return _blend(images, _luma(images).mean((1, 2, 3), keepdim=True), factor_B)


def adjust_saturation(images_B3HW: Tensor, factor_B: Tensor) -> Tensor:
    images = as_floats(images_B3HW)
    return _blend(images, _luma(images), factor_B)


def adjust_hue(images_B3HW: Tensor, shift_B: Tensor) -> Tensor:
    """Shift the hue by `shift` of a full circle in HSV space."""
    images = as_floats(images_B3HW)
    red, green, blue = images.unbind(1)
    value, least = images.amax(1), images.amin(1)
    chroma = value - least
    divisor = torch.where(chroma == 0, 1.0, chroma)
    sixth = torch.where(
        value == red,
        (green - blue) / divisor,
        torch.where(value == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )
    sixth = sixth + 6 * to_device(shift_B, images.device)[:, None, None]

    def channel(offset: int) -> Tensor:
        k = torch.remainder(sixth + offset, 6)
        return value - chroma * torch.minimum(k, 4 - k).clamp(0, 1)

    return torch.stack([channel(5), channel(3), channel(1)], dim=1)


def _blend(images_BCHW: Tensor, other: Tensor | float, factor_B: Tensor) -> Tensor:
    factor = to_device(factor_B, images_BCHW.device)[:, None, None, None]
    return (images_BCHW * factor + (1 - factor) * other).clamp(0, 1)


def _luma(images_B3HW: Tensor) -> Tensor:
    red, green, blue = images_B3HW.unbind(1)
    return (0.2989 * red + 0.587 * green + 0.114 * blue).unsqueeze(1)
