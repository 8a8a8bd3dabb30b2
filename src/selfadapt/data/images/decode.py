"""Decoding of image files into uint8 pixels. This is the only module that opens image files.

It does not import torch before a tensor is asked for, so that `predict` with an ONNX model starts quickly.

Shapes: V crops of an image, C channels, H by W pixels.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from selfadapt.core.errors import UserError
from selfadapt.core.regular_files import open_regular
from selfadapt.data.images.packed_files import image_bytes, is_packed

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    Array = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]

Box = tuple[int, int, int, int]  # left, top, right and bottom in pixels of the upright image
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]

ORIENTATION = 0x0112  # EXIF tag
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"})


class UnreadableImage(Exception):
    """A file that is not an image, or a damaged one."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Resize and centre crop to a square: the shorter side becomes size / crop, then the central square is kept.

    With `squash`, both sides are resized to size / crop, which ignores the aspect ratio.
    """

    size: int
    interpolation: Interpolation = "bilinear"
    crop: float = 1.0
    squash: bool = False

    @classmethod
    def middle(cls, size: int) -> "Frame":
        """The usual evaluation transform after training on random crops: resize to 256, centre crop of 224."""
        return cls(size=size, crop=7 / 8)

    @property
    def side(self) -> int:
        """Length of the shorter side after resizing."""
        return math.floor(self.size / self.crop)


def decode(path: Path, *, channels: int, resize: int | Frame | None, white: float | None = None) -> "Tensor":
    """Decode a file into uint8 pixels, C×H×W, as `decode_array` does."""
    import torch

    return torch.from_numpy(decode_array(path, channels=channels, resize=resize, white=white))


def decode_array(path: Path, *, channels: int, resize: int | Frame | None, white: float | None = None) -> "Array":
    """Decode a file into uint8 pixels, C×H×W, upright, in colour or greyscale.

    Animations yield their first frame; transparent pixels become white.

    Args:
        path: The image file.
        channels: 1 for greyscale, 3 for RGB.
        resize: Size of the square to resize and crop to; None keeps the size.
        white: Pixel value that becomes 255, for images of more than 8 bits.

    Raises:
        UnreadableImage: The file cannot be decoded.
    """
    frame = Frame(size=resize) if isinstance(resize, int) else resize
    with open_image(path) as image:
        decoded = _DecodedImage.of(image, channels, white, 2 * frame.side if frame else None)
        return _array(decoded.image if frame is None else _resized_and_cropped(decoded, frame))


def decode_within(path: Path, most: int, *, channels: int, white: float | None = None) -> "Tensor":
    """Decode a file as `decode` does, with each side longer than `most` resized to it, ignoring the aspect ratio."""
    from PIL import Image

    with open_image(path) as image:
        decoded = _DecodedImage.of(image, channels, white, 2 * most)
        width, height = (min(most, side) for side in decoded.size)
        if (width, height) == decoded.image.size:
            return _pixels(decoded.image)
        box = decoded.scaled((0, 0, *decoded.size))
        return _pixels(decoded.image.resize((width, height), Image.Resampling.BILINEAR, box))


def decode_crops(
    path: Path,
    draw: Callable[[int, int], Sequence[Box]],
    size: tuple[int, int],
    *,
    channels: int,
    white: float | None = None,
) -> "Tensor":
    """Decode crops of an image, each resized to `size` (width, height): uint8, V×C×H×W.

    `draw` maps the width and height of the upright image to the boxes. As in torchvision, each box is cut before it is
    resized, so that no pixel outside it contributes.
    """
    import torch
    from PIL import Image

    with open_image(path) as image:
        width, height = _upright_size(image)
        boxes = draw(width, height)
        # A JPEG may be decoded at a lower resolution, as long as each box keeps twice the pixels that it needs.
        reduction = min(min((b[2] - b[0]) / size[0], (b[3] - b[1]) / size[1]) for b in boxes) / 2
        decoded = _DecodedImage.of(image, channels, white, math.ceil(min(width, height) / reduction))
        crops = []
        for box in boxes:
            left, top, right, bottom = decoded.scaled(box)
            x, y = math.floor(left), math.floor(top)
            crop = decoded.image.crop((x, y, math.ceil(right), math.ceil(bottom)))
            inner = left - x, top - y, right - x, bottom - y
            crops.append(_pixels(crop.resize(size, Image.Resampling.BILINEAR, inner)))
        return torch.stack(crops)


@contextmanager
def open_image(path: Path) -> "Iterator[Image]":
    """Open an image file, packed or not; any failure to read it inside the block raises UnreadableImage."""
    from PIL import Image, UnidentifiedImageError

    try:
        with (
            BytesIO(image_bytes(path)) if is_packed(path) else open_regular(path) as file,
            Image.open(file) as image,
        ):
            yield image
    except UnidentifiedImageError as error:  # its own message names a file object
        raise UnreadableImage(f"cannot identify image file {str(path)!r}") from error
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError, UserError) as error:
        raise UnreadableImage(str(error) or type(error).__name__) from error


def _upright_size(image: "Image") -> tuple[int, int]:
    width, height = image.size
    return (width, height) if _orientation(image) < 5 else (height, width)


def _orientation(image: "Image") -> int:
    return int(image.getexif().get(ORIENTATION, 1))


@dataclass(frozen=True)
class _DecodedImage:
    """An upright 8-bit image. `size` is its full size; it may have been decoded at 1/2, 1/4 or 1/8 of that."""

    image: "Image"
    size: tuple[int, int]
    orientation: int

    @classmethod
    def of(cls, image: "Image", channels: int, white: float | None, least: int | None) -> "_DecodedImage":
        """Decode; `least` pixels on the shorter side are enough, if given."""
        from PIL import ImageOps

        mode = "L" if channels == 1 else "RGB"
        size, orientation = _upright_size(image), _orientation(image)
        if least is not None:
            image.draft(mode, (least, least))  # lets the JPEG decoder skip detail
        upright = image if orientation == 1 else ImageOps.exif_transpose(image)
        return cls(plain_image(upright, mode, white), size, orientation)

    def scaled(self, box: Box) -> tuple[float, float, float, float]:
        """Convert a box from full size to the size at which the image was decoded."""
        scale = round(max(self.size) / max(self.image.size))
        across, down = (side / scale for side in self.size)
        # Decoding rounds the size up and pads at the right and bottom, before the image is turned upright.
        x = self.image.width - across if self.orientation in (2, 3, 6, 7) else 0.0
        y = self.image.height - down if self.orientation in (3, 4, 7, 8) else 0.0
        left, top, right, bottom = (side / scale for side in box)
        return x + left, y + top, x + right, y + bottom


def _array(image: "Image") -> "Array":
    """The pixels of an image, C×H×W."""
    pixels = np.array(image)
    return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)


def _pixels(image: "Image") -> "Tensor":
    import torch

    return torch.from_numpy(_array(image))


def plain_image(image: "Image", mode: str, white: float | None) -> "Image":
    """Convert an image to 8 bits in colour (mode RGB) or greyscale (L), on a white background."""
    from PIL import Image

    if is_deep(image.mode):
        if white is None:
            raise UnreadableImage("it has more than 8 bits per pixel, unlike the other images; convert it to 8 bits")
        values = np.nan_to_num(np.asarray(image).astype(np.float64))
        if values.max(initial=0) > white:
            raise UnreadableImage(f"its pixel value {values.max():g} exceeds the white level {white:g} of these data")
        return Image.fromarray(np.clip(np.round(values * 255 / white), 0, 255).astype(np.uint8)).convert(mode)
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        layers = image.convert("RGBA")
        background = Image.new("RGBA", layers.size, (255, 255, 255, 255))
        return Image.alpha_composite(background, layers).convert(mode)
    return image if image.mode == mode else image.convert(mode)


def is_deep(mode: str) -> bool:
    """Whether pixels of this PIL mode have 16 or 32 bits."""
    return mode.startswith("I") or mode == "F"


def _resized_and_cropped(decoded: _DecodedImage, frame: Frame) -> "Image":
    from PIL import Image

    image, size = decoded.image, decoded.size
    width, height = (frame.side if frame.squash else int(frame.side * side / min(size)) for side in size)
    if (width, height) != image.size:
        box = decoded.scaled((0, 0, *size))
        image = image.resize((width, height), Image.Resampling[frame.interpolation.upper()], box)
    x, y = (round((side - frame.size) / 2) for side in image.size)  # as torchvision's CenterCrop
    return image.crop((x, y, x + frame.size, y + frame.size))
