"""Images of one size, wherever they are: in memory, in a mapped file, or in files that are decoded on demand.

Shapes: B images of a batch, N images in all, C channels, H by W pixels.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from selfadapt.core.errors import UserError
from selfadapt.data.inputs import Inputs

if TYPE_CHECKING:
    from PIL.Image import Image

Shape = tuple[int, int, int]
Box = tuple[int, int, int, int]  # left, top, right and bottom in the pixels of an upright picture
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]

ORIENTATION = 0x0112  # the EXIF tag
_BATCH = 256  # images that are resized at once


class UnreadableImage(Exception):
    """A file that is no image, or a broken one."""


@runtime_checkable
class FileImages(Inputs, Protocol):
    """Images that are decoded from files each time they are read, so one may turn out broken."""

    @property
    def files(self) -> "ImageFiles": ...

    def decode(self, position: int) -> Tensor:
        """One image as C×H×W; raises UnreadableImage."""
        ...


@dataclass(frozen=True, kw_only=True)
class Frame:
    """How a picture of any size becomes a square: its shorter side is brought to size/crop, then the middle is kept.

    With `squash` both sides are brought there, whatever the picture's shape was.
    """

    size: int
    interpolation: Interpolation = "bilinear"
    crop: float = 1.0
    squash: bool = False

    @classmethod
    def middle(cls, size: int) -> "Frame":
        """What is usual at test where training sees random crops: for 224 pixels the shorter side is brought to 256."""
        return cls(size=size, crop=7 / 8)

    @property
    def side(self) -> int:
        """The length to which the shorter side is brought."""
        return math.floor(self.size / self.crop)


@dataclass(frozen=True)
class TensorImages:
    """One uint8 tensor, in memory or mapped from a file."""

    values_NCHW: Tensor

    @property
    def shape(self) -> Shape:
        channels, height, width = self.values_NCHW.shape[1:]
        return channels, height, width

    def __len__(self) -> int:
        return len(self.values_NCHW)

    def read(self, index_B: Tensor) -> Tensor:
        return self.values_NCHW.index_select(0, index_B.to(self.values_NCHW.device))

    def take(self, index_n: Tensor) -> "TensorImages":
        return TensorImages(taken(self.values_NCHW, index_n))

    def signature(self) -> bytes:
        return content(self.values_NCHW)

    def brought_to(self, size: int) -> "TensorImages":
        """The middle square of each image at this size, as files are brought to one."""
        height, width = self.shape[1:]
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        squares_NCHW = self.values_NCHW[:, :, top : top + side, left : left + side]
        if side == size:
            return TensorImages(squares_NCHW.contiguous())
        try:
            resized_NCHW = torch.empty(*squares_NCHW.shape[:2], size, size, dtype=torch.uint8)
        except RuntimeError:
            raise UserError(f"{len(self)} images of {size}×{size} pixels do not fit into memory") from None
        for piece, place in zip(squares_NCHW.split(_BATCH), resized_NCHW.split(_BATCH), strict=True):
            place.copy_(interpolate(piece.float(), (size, size), mode="bilinear", antialias=True).round().clamp(0, 255))
        return TensorImages(resized_NCHW)


def taken(values: Tensor, index_n: Tensor) -> Tensor:
    """These rows of a tensor."""
    if not len(index_n):
        return values[:0]
    first, size = int(index_n[0]), len(index_n)
    if bool((index_n == torch.arange(first, first + size)).all()):  # a run of neighbours needs no copy
        return values[first : first + size]
    return values[index_n]


def content(values: Tensor) -> bytes:
    """A hash of all values of a tensor."""
    digest = hashlib.sha256()
    for piece in values.split(4096):
        digest.update(piece.contiguous().numpy().data)
    return digest.digest()


@dataclass(frozen=True)
class ImageFiles:
    """Image files, decoded each time they are read.

    With `resize`, the shorter side is brought to that length and the middle square is kept, or as the frame says.
    `white` is the value of 16-bit pixels that becomes 255, one for the whole set. Files that turned out broken are
    noted in `broken`, which all parts that were taken of a set share.
    """

    paths: Sequence[Path]
    shape: Shape
    resize: int | Frame | None = None
    white: float | None = None
    broken: dict[Path, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def files(self) -> "ImageFiles":
        return self

    def __len__(self) -> int:
        return len(self.paths)

    def decode(self, position: int) -> Tensor:
        """One image as C×H×W; raises UnreadableImage."""
        pixels = decode(self.paths[position], channels=self.shape[0], resize=self.resize, white=self.white)
        if pixels.shape != self.shape:
            raise UnreadableImage(
                f"it is {pixels.shape[2]}×{pixels.shape[1]}, the others {self.shape[2]}×{self.shape[1]}"
            )
        return pixels

    def crops(self, position: int, draw: Callable[[int, int], Sequence[Box]]) -> Tensor:
        """Boxes of one picture, brought to the size of these images: V×C×H×W. `draw` makes them of width and height."""
        size = self.shape[2], self.shape[1]
        return decode_crops(self.paths[position], draw, size, channels=self.shape[0], white=self.white)

    def read(self, index_B: Tensor) -> Tensor:
        return torch.stack([self.decode(position) for position in index_B.tolist()])

    def take(self, index_n: Tensor) -> "ImageFiles":
        return replace(self, paths=[self.paths[i] for i in index_n.tolist()])

    def signature(self) -> bytes:
        files = [(path.name, path.stat().st_size if path.exists() else -1) for path in self.paths]
        scale = () if self.white is None else (self.white,)
        return hashlib.sha256(repr((self.shape, self.resize, files, *scale)).encode()).digest()


def decode(path: Path, *, channels: int, resize: int | Frame | None, white: float | None = None) -> Tensor:
    """A file as uint8 pixels, C×H×W, upright, in colour or grey.

    Of a moving picture the first frame counts; transparency shows white; of 16 bits, `white` becomes 255.
    """
    frame = Frame(size=resize) if isinstance(resize, int) else resize
    with _opened(path) as image:
        picture = _Picture.of(image, "L" if channels == 1 else "RGB", white, 2 * frame.side if frame else None)
        return _pixels(_framed(picture, frame) if frame is not None else picture.image)


def decode_within(path: Path, most: int, *, channels: int, white: float | None = None) -> Tensor:
    """A file as `decode` gives it, each side that is longer than `most` brought to that, whatever its shape was."""
    from PIL import Image

    with _opened(path) as image:
        picture = _Picture.of(image, "L" if channels == 1 else "RGB", white, 2 * most)
        width, height = (min(most, side) for side in picture.size)
        if (width, height) == picture.image.size:
            return _pixels(picture.image)
        box = picture.place((0, 0, *picture.size))
        return _pixels(picture.image.resize((width, height), Image.Resampling.BILINEAR, box))


def decode_crops(
    path: Path,
    draw: Callable[[int, int], Sequence[Box]],
    size: tuple[int, int],
    *,
    channels: int,
    white: float | None = None,
) -> Tensor:
    """Boxes of a picture, each brought to `size` (width, height), as uint8 pixels, V×C×H×W.

    `draw` makes the boxes of the width and height of the upright picture. Each is cut before it is brought to size, so
    nothing outside of it shows, as torchvision does it.
    """
    from PIL import Image

    with _opened(path) as image:
        width, height = _upright_size(image)
        boxes = draw(width, height)
        # By how much a JPEG may be decoded smaller, so that every box keeps twice the pixels that are wanted of it.
        less = min(min((b[2] - b[0]) / size[0], (b[3] - b[1]) / size[1]) for b in boxes) / 2
        picture = _Picture.of(image, "L" if channels == 1 else "RGB", white, math.ceil(min(width, height) / less))
        crops = []
        for box in boxes:
            left, top, right, bottom = picture.place(box)
            x, y = math.floor(left), math.floor(top)
            part = picture.image.crop((x, y, math.ceil(right), math.ceil(bottom)))
            own = left - x, top - y, right - x, bottom - y
            crops.append(_pixels(part.resize(size, Image.Resampling.BILINEAR, own)))
        return torch.stack(crops)


@contextmanager
def _opened(path: Path) -> "Iterator[Image]":
    """An image file whose head is read; what turns out broken in the block raises UnreadableImage."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            yield image
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise UnreadableImage(str(error) or type(error).__name__) from error


def _upright_size(image: "Image") -> tuple[int, int]:
    width, height = image.size
    return (width, height) if _orientation(image) < 5 else (height, width)


def _orientation(image: "Image") -> int:
    return int(image.getexif().get(ORIENTATION, 1))


@dataclass(frozen=True)
class _Picture:
    """A picture, upright and plain. Its full size is `size`; it may have been decoded at a half to an eighth."""

    image: "Image"
    size: tuple[int, int]
    orientation: int

    @classmethod
    def of(cls, image: "Image", mode: str, white: float | None, least: int | None) -> "_Picture":
        """`least` pixels of the shorter side are enough, if given."""
        from PIL import ImageOps

        size, orientation = _upright_size(image), _orientation(image)
        if least is not None:
            # Lets JPEG skip detail; at twice the wanted size and more, what comes out hardly differs.
            image.draft(mode, (least, least))
        upright = image if orientation == 1 else ImageOps.exif_transpose(image)
        return cls(plain_image(upright, mode, white), size, orientation)

    def place(self, box: Box) -> tuple[float, float, float, float]:
        """Where a box of the full picture is in the decoded one."""
        scale = round(max(self.size) / max(self.image.size))
        across, down = (side / scale for side in self.size)
        # Decoding rounds the size up. The rest, at the right and below until the image was turned, is no picture.
        x = self.image.width - across if self.orientation in (2, 3, 6, 7) else 0.0
        y = self.image.height - down if self.orientation in (3, 4, 7, 8) else 0.0
        left, top, right, bottom = (side / scale for side in box)
        return x + left, y + top, x + right, y + bottom


def _pixels(image: "Image") -> Tensor:
    pixels = torch.from_numpy(np.array(image))
    return pixels.unsqueeze(0) if pixels.ndim == 2 else pixels.permute(2, 0, 1)


def plain_image(image: "Image", mode: str, white: float | None) -> "Image":
    """The image in colour (RGB) or grey (L), of 8 bits, on white."""
    from PIL import Image

    if is_deep(image.mode):
        if white is None:
            raise UnreadableImage("it has more than 8 bits to a pixel, unlike the others; bring it to 8")
        values = np.nan_to_num(np.asarray(image).astype(np.float64))
        if values.max(initial=0) > white:
            raise UnreadableImage(f"it holds the value {values.max():g}, and white is {white:g} in these data")
        return Image.fromarray(np.clip(np.round(values * 255 / white), 0, 255).astype(np.uint8)).convert(mode)
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        layers = image.convert("RGBA")
        ground = Image.new("RGBA", layers.size, (255, 255, 255, 255))
        return Image.alpha_composite(ground, layers).convert(mode)
    return image if image.mode == mode else image.convert(mode)


def is_deep(mode: str) -> bool:
    """Whether pixels of this mode have 16 or 32 bits."""
    return mode.startswith("I") or mode == "F"


def _framed(picture: _Picture, frame: Frame) -> "Image":
    """The picture as the frame wants it."""
    from PIL import Image

    image, size = picture.image, picture.size
    width, height = (frame.side if frame.squash else int(frame.side * side / min(size)) for side in size)
    if (width, height) != image.size:
        box = picture.place((0, 0, *size))
        image = image.resize((width, height), Image.Resampling[frame.interpolation.upper()], box)
    x, y = (round((side - frame.size) / 2) for side in image.size)  # as torchvision's CenterCrop
    return image.crop((x, y, x + frame.size, y + frame.size))
