"""Images of one size, wherever they are: in memory, in a mapped file, or in files that are decoded on demand.

Shapes: B images of a batch, N images in all, C channels, H by W pixels.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from selfadapt.data.inputs import Inputs

if TYPE_CHECKING:
    from PIL.Image import Image

Shape = tuple[int, int, int]

ORIENTATION = 0x0112  # the EXIF tag


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
        if not len(index_n):
            return TensorImages(self.values_NCHW[:0])
        first, size = int(index_n[0]), len(index_n)
        if bool((index_n == torch.arange(first, first + size)).all()):  # a run of neighbours needs no copy
            return TensorImages(self.values_NCHW[first : first + size])
        return TensorImages(self.values_NCHW[index_n])

    def signature(self) -> bytes:
        digest = hashlib.sha256()
        for piece in self.values_NCHW.split(4096):
            digest.update(piece.contiguous().numpy().data)
        return digest.digest()


@dataclass(frozen=True)
class ImageFiles:
    """Image files, decoded each time they are read.

    With `resize`, the shorter side is brought to that length and the middle square is kept. `white` is the value of
    16-bit pixels that becomes 255, one for the whole set. Files that turned out broken are noted in `broken`, which all
    parts that were taken of a set share.
    """

    paths: Sequence[Path]
    shape: Shape
    resize: int | None = None
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

    def read(self, index_B: Tensor) -> Tensor:
        return torch.stack([self.decode(position) for position in index_B.tolist()])

    def take(self, index_n: Tensor) -> "ImageFiles":
        return replace(self, paths=[self.paths[i] for i in index_n.tolist()])

    def signature(self) -> bytes:
        files = [(path.name, path.stat().st_size if path.exists() else -1) for path in self.paths]
        scale = () if self.white is None else (self.white,)
        return hashlib.sha256(repr((self.shape, self.resize, files, *scale)).encode()).digest()


def decode(path: Path, *, channels: int, resize: int | None, white: float | None = None) -> Tensor:
    """A file as uint8 pixels, C×H×W, upright, in colour or grey.

    Of a moving picture the first frame counts; transparency shows white; of 16 bits, `white` becomes 255.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            if resize is not None:
                image.draft("L" if channels == 1 else "RGB", (resize, resize))  # lets JPEG skip detail
            upright = image if image.getexif().get(ORIENTATION, 1) == 1 else ImageOps.exif_transpose(image)
            plain = _plain(upright, "L" if channels == 1 else "RGB", white)
            if resize is not None:
                plain = _middle_square(plain, resize)
            pixels = torch.from_numpy(np.array(plain))
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise UnreadableImage(str(error) or type(error).__name__) from error
    return pixels.unsqueeze(0) if channels == 1 else pixels.permute(2, 0, 1)


def _plain(image: "Image", mode: str, white: float | None) -> "Image":
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


def _middle_square(image: "Image", size: int) -> "Image":
    from PIL import Image

    scale = size / min(image.size)
    width, height = (max(size, round(side * scale)) for side in image.size)
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - size) // 2, (height - size) // 2
    return image.crop((left, top, left + size, top + size))
