"""Image headers, which are read without decoding the pixels, and the white level of 16-bit images."""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from selfadapt.core.atomic_files import atomic_path
from selfadapt.core.cache_dir import cache_dir
from selfadapt.core.errors import UserError
from selfadapt.data.images.decode import ORIENTATION, UnreadableImage, is_deep, open_image
from selfadapt.data.images.packed_files import image_size_and_time

if TYPE_CHECKING:
    from PIL.Image import Image

_GREY_MODES = frozenset({"1", "L", "I", "F", "I;16", "I;16B", "I;16L", "LA"})
_WHITE_LEVELS = tuple(2**bits - 1 for bits in (8, 10, 12, 14, 16, 24, 32))
_EXIF_TEXTS = (b"Raw profile type exif", b"XML:com.adobe.xmp")  # PNG text chunks that may contain an orientation


class Header(NamedTuple):
    """Size (width, height) of the upright image, whether it is greyscale, and whether it has more than 8 bits."""

    size: tuple[int, int]
    grey: bool
    deep: bool


def header(path: Path) -> Header:
    """Read the header of an image file; raise UnreadableImage if that fails."""
    with open_image(path) as image:
        size = image.size if _orientation(image, path) < 5 else image.size[::-1]  # turned by 90 degrees
        return Header(size, image.mode in _GREY_MODES, is_deep(image.mode))


def _orientation(image: "Image", path: Path) -> int:
    from PIL import Image

    if image.format != "PNG" or _has_late_exif(path):
        return int(image.getexif().get(ORIENTATION, 1))
    # The PNG plugin decodes the pixels to find chunks after them; the base class reads only what comes before.
    return int(Image.Image.getexif(image).get(ORIENTATION, 1))


def _has_late_exif(path: Path) -> bool:
    """Whether a PNG has a chunk after its pixels that may contain an orientation."""
    offset, past_pixels = 8, False
    with open(path, "rb", buffering=0) as file:
        while file.seek(offset) == offset and len(head := file.read(8)) == 8:
            length, kind = int.from_bytes(head[:4], "big"), head[4:]
            if kind == b"IEND":
                return False
            if past_pixels and kind == b"eXIf":
                return True
            if past_pixels and kind in (b"tEXt", b"zTXt", b"iTXt") and file.read(80).startswith(_EXIF_TEXTS):
                return True
            past_pixels |= kind == b"IDAT"
            offset += 12 + length
    return False


def white_of(paths: Sequence[Path]) -> float:
    """Return the white level of files of more than 8 bits: the largest pixel value, rounded up to a camera's bit depth.

    Bit depths are 8, 10, 12, 14, 16, 24 and 32; floating-point images may use 1 instead. Finding the largest value
    requires decoding, so the result is cached below $SELFADAPT_HOME until a file changes.
    """
    cached = cache_dir() / "white" / files_key(paths)
    with suppress(OSError, ValueError):
        return float(cached.read_text())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        largest, integers = max(pool.map(_largest_value, paths))
    if not integers and largest <= 1:
        white = 1.0
    else:
        white = float(next((level for level in _WHITE_LEVELS if level >= largest), largest))
    with suppress(UserError), atomic_path(cached) as draft:
        draft.write_text(str(white))
    return white


def _largest_value(path: Path) -> tuple[float, bool]:
    """Return the largest pixel value of a file and whether it stores integers; (0, False) if it is unreadable."""
    with suppress(UnreadableImage), open_image(path) as image:
        values = np.nan_to_num(np.asarray(image).astype(np.float64), posinf=0)
        return float(values.max(initial=0)), image.mode != "F"
    return 0.0, False


def files_key(paths: Sequence[Path], *settings: object) -> str:
    """Return a hash of the paths, sizes and modification times of files, and of the settings used to read them."""
    digest = hashlib.sha256(repr(settings).encode())
    for path in paths:
        size, changed = image_size_and_time(path)
        digest.update(f"{path.resolve()}\0{size}\0{changed}\n".encode())
    return digest.hexdigest()[:32]
