"""Images of one size: in memory, in a memory-mapped file, or in files that are decoded on demand.

Shapes: B images of a batch, N images in total, V crops of an image, C channels, H by W pixels.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from selfadapt.core.errors import UserError
from selfadapt.data.images.decode import Box, Frame, UnreadableImage, decode, decode_crops
from selfadapt.data.images.packed_files import image_exists, image_size_and_time
from selfadapt.data.inputs import InputKind, Inputs, TensorInputs

Shape = tuple[int, int, int]  # C, H, W

_BATCH = 256  # images resized at once


@runtime_checkable
class FileImages(Inputs, Protocol):
    """Images that are decoded from files whenever they are read, so that one may turn out unreadable."""

    @property
    def files(self) -> "ImageFiles": ...

    def decode(self, position: int) -> Tensor:
        """Decode one image, C×H×W; raise UnreadableImage if that fails."""
        ...


class TensorImages(TensorInputs):
    """Images in one uint8 tensor, in memory or memory-mapped."""

    kind: ClassVar[InputKind] = "images"

    @property
    def values_NCHW(self) -> Tensor:
        return self.values

    @property
    def shape(self) -> Shape:
        channels, height, width = self.values.shape[1:]
        return channels, height, width

    def resized_to(self, size: int) -> "TensorImages":
        """Crop the central square of each image and resize it, as is done for image files."""
        height, width = self.shape[1:]
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        squares_NCHW = self.values_NCHW[:, :, top : top + side, left : left + side]
        if side == size:
            return TensorImages(squares_NCHW.contiguous())
        try:
            resized_NCHW = torch.empty(*squares_NCHW.shape[:2], size, size, dtype=torch.uint8)
        except RuntimeError:
            raise UserError(
                f"{len(self)} images of {size}×{size} pixels do not fit into memory; choose a smaller --image-size"
            ) from None
        for images, out in zip(squares_NCHW.split(_BATCH), resized_NCHW.split(_BATCH), strict=True):
            out.copy_(interpolate(images.float(), (size, size), mode="bilinear", antialias=True).round().clamp(0, 255))
        return TensorImages(resized_NCHW)


@dataclass(frozen=True)
class EveryNth(TensorImages):
    """The images first, first + n, … of a data set, by their positions in it."""

    n: int

    def read(self, index_B: Tensor) -> Tensor:
        return super().read(index_B // self.n)


@dataclass(frozen=True)
class ImageFiles:
    """Image files that are decoded whenever they are read.

    With `resize`, each image is resized and cropped to a square. `white` is the pixel value that becomes 255 in images
    of more than 8 bits. `broken` records files that turned out unreadable; all subsets of a data set share it.
    """

    kind: ClassVar[InputKind] = "images"
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
        """Decode one image, C×H×W; raise UnreadableImage if that fails."""
        pixels = decode(self.paths[position], channels=self.shape[0], resize=self.resize, white=self.white)
        if pixels.shape != self.shape:
            size, expected = (f"{shape[2]}×{shape[1]}" for shape in (pixels.shape, self.shape))
            raise UnreadableImage(f"it has {size} pixels, but the other images have {expected}")
        return pixels

    def crops(self, position: int, draw: Callable[[int, int], Sequence[Box]]) -> Tensor:
        """Decode crops of one image, resized to the shape of these images: V×C×H×W (see `decode_crops`)."""
        size = self.shape[2], self.shape[1]
        return decode_crops(self.paths[position], draw, size, channels=self.shape[0], white=self.white)

    def read(self, index_B: Tensor) -> Tensor:
        return torch.stack([self.decode(position) for position in index_B.tolist()])

    def take(self, index_n: Tensor) -> "ImageFiles":
        return replace(self, paths=[self.paths[i] for i in index_n.tolist()])

    def signature(self) -> bytes:
        files = [(path.name, image_size_and_time(path)[0] if image_exists(path) else -1) for path in self.paths]
        scale = () if self.white is None else (self.white,)
        return hashlib.sha256(repr((self.shape, self.resize, files, *scale)).encode()).digest()
