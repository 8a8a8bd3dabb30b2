"""Augmentation of whole batches, on the device where they are.

What is drawn comes from a generator on the CPU, so every device draws alike.
Shapes: B images, C channels, H by W pixels.
"""

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from selfadapt.errors import UserError

Augment = Callable[[Tensor, torch.Generator], Tensor]
AugmentName = Literal["none", "crop", "crop-flip"]


def named_augment(name: str, height: int) -> Augment | None:
    """The augmentation of this name; crops pad an eighth of the height, which is the usual 4 pixels of 32."""
    if name not in get_args(AugmentName):
        raise UserError(f"--augment {name!r} is not known; choose one of {', '.join(get_args(AugmentName))}")
    if name == "none":
        return None
    padding = max(1, height // 8)

    def augment(images_BCHW: Tensor, generator: torch.Generator) -> Tensor:
        images_BCHW = random_crop(images_BCHW, padding, generator)
        return random_flip(images_BCHW, generator) if name == "crop-flip" else images_BCHW

    return augment


def random_crop(images_BCHW: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    """Pad with black on all sides, then cut a window of the old size at a random place of each image."""
    count, _, height, width = images_BCHW.shape
    top_B = torch.randint(2 * padding + 1, (count,), generator=generator)
    left_B = torch.randint(2 * padding + 1, (count,), generator=generator)
    return crop(pad(images_BCHW, [padding] * 4), top_B, left_B, height, width)


def crop(images_BCHW: Tensor, top_B: Tensor, left_B: Tensor, height: int, width: int) -> Tensor:
    """A window of this size from each image, each at its own place."""
    device = images_BCHW.device
    rows_BH = (top_B.unsqueeze(1) + torch.arange(height)).to(device)
    columns_BW = (left_B.unsqueeze(1) + torch.arange(width)).to(device)
    image_B = torch.arange(len(images_BCHW), device=device)
    channels_last = images_BCHW.permute(0, 2, 3, 1)[image_B[:, None, None], rows_BH[:, :, None], columns_BW[:, None, :]]
    return channels_last.permute(0, 3, 1, 2)


def random_flip(images_BCHW: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror each image left to right with probability one half."""
    flipped_B = (torch.rand(len(images_BCHW), generator=generator) < 0.5).to(images_BCHW.device)
    return torch.where(flipped_B[:, None, None, None], images_BCHW.flip(3), images_BCHW)
