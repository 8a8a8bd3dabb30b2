"""What image files say of themselves before they are decoded, and how bright white is in those of 16 bits."""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from selfadapt.core.cache_dir import cache_dir
from selfadapt.data.images.storage import ORIENTATION, UnreadableImage, is_deep

if TYPE_CHECKING:
    from PIL.Image import Image

_GREY = frozenset({"1", "L", "I", "F", "I;16", "I;16B", "I;16L", "LA"})
_WHITES = tuple(2**bits - 1 for bits in (8, 10, 12, 14, 16, 24, 32))
_TELLING = (b"Raw profile type exif", b"XML:com.adobe.xmp")  # texts of a PNG that may hold an orientation


class Header(NamedTuple):
    """Size (width, height) as the image will be decoded, whether it is grey, and whether it has over 8 bits."""

    size: tuple[int, int]
    grey: bool
    deep: bool


def header(path: Path) -> Header:
    """What a file says of its image, without decoding it."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            width, height = image.size
            if _orientation(image, path) >= 5:  # lies on its side
                width, height = height, width
            return Header((width, height), image.mode in _GREY, is_deep(image.mode))
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise UnreadableImage(str(error) or type(error).__name__) from error


def _orientation(image: "Image", path: Path) -> int:
    from PIL import Image

    if image.format != "PNG" or _told_late(path):
        return int(image.getexif().get(ORIENTATION, 1))
    # PNG's own method decodes the pixels, to see what stands behind them; this one looks at what stands before.
    return int(Image.Image.getexif(image).get(ORIENTATION, 1))


def _told_late(path: Path) -> bool:
    """Whether a chunk that may tell a PNG's orientation comes after its pixels; walks from chunk to chunk."""
    place, past_pixels = 8, False
    with open(path, "rb", buffering=0) as file:
        while file.seek(place) == place and len(head := file.read(8)) == 8:
            length, kind = int.from_bytes(head[:4], "big"), head[4:]
            if kind == b"IEND":
                return False
            if past_pixels and kind == b"eXIf":
                return True
            if past_pixels and kind in (b"tEXt", b"zTXt", b"iTXt") and file.read(80).startswith(_TELLING):
                return True
            past_pixels |= kind == b"IDAT"
            place += 12 + length
    return False


def white_of(paths: Sequence[Path]) -> float:
    """The value that stands for white in all these files of over 8 bits: the largest in any, up to the next depth.

    A depth is one that cameras have: 8, 10, 12, 14 or 16 bits; floats may go to 1 instead. Files must be decoded for
    this, so the answer is kept below $SELFADAPT_HOME as long as none of them changes.
    """
    kept = cache_dir() / "white" / files_key(paths)
    with suppress(OSError, ValueError):
        return float(kept.read_text())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        largest = max(pool.map(_largest, paths))
    white = _next_white(*largest)
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        draft = kept.with_name(f".draft-{kept.name}-{os.getpid()}")
        draft.write_text(str(white))
        draft.replace(kept)
    return white


def _next_white(largest: float, whole: bool) -> float:
    if not whole and largest <= 1:
        return 1.0
    return float(next((white for white in _WHITES if white >= largest), largest))


def _largest(path: Path) -> tuple[float, bool]:
    """The largest value of a file, and whether it holds whole numbers; 0 for one that is broken."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            values = np.nan_to_num(np.asarray(image).astype(np.float64), posinf=0)
            return float(values.max(initial=0)), image.mode != "F"
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError):
        return 0.0, False


def files_key(paths: Sequence[Path], *settings: object) -> str:
    """A name for these files as they are, read in this way: another one as soon as one of them changes."""
    digest = hashlib.sha256(repr(settings).encode())
    for path in paths:
        status = path.stat()
        digest.update(f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:32]
