"""Images as users hold them (Pillow, arrays, tensors, files), and as a notebook shows them: data URIs."""

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from selfadapt.data.images.decode import SUFFIXES

if TYPE_CHECKING:
    from PIL.Image import Image

_SIDE = 128  # pixels of the longer side of a thumbnail, at most
_ENLARGED = 32  # pixels below which an image is enlarged without smoothing


def as_image(value: Any) -> "Image | None":
    """Return an image of Pillow, or of an array or a tensor of uint8 or of floats within 0..1, as one of Pillow.

    Channels may come first or last. Anything else gives None.
    """
    from PIL import Image

    if isinstance(value, Image.Image):
        return value
    pixels = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
    if not isinstance(pixels, np.ndarray) or pixels.ndim not in (2, 3) or pixels.dtype.kind not in "fu":
        return None
    if pixels.dtype.kind == "f":
        if not (pixels.size and pixels.min() >= 0 and pixels.max() <= 1):
            return None
        pixels = np.round(pixels * 255)
    if pixels.ndim == 3:
        pixels = np.moveaxis(pixels, 0, -1) if pixels.shape[-1] not in (1, 3) else pixels
        pixels = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
        if pixels.ndim == 3 and pixels.shape[-1] != 3:
            return None
    return Image.fromarray(pixels.astype(np.uint8))


def image_file(value: Any) -> Path | None:
    """Return the path of an existing image file, or None."""
    if not isinstance(value, str | Path) or Path(value).suffix.lower() not in SUFFIXES:
        return None
    return path if (path := Path(value)).is_file() else None


def data_uri(image: "Image") -> str:
    """Return a thumbnail of an image as a data URI."""
    from PIL import Image

    small = image.convert("RGB")
    if max(small.size) < _ENLARGED:
        factor = _SIDE // (2 * max(small.size))
        small = small.resize((small.width * factor, small.height * factor), Image.Resampling.NEAREST)
    small.thumbnail((_SIDE, _SIDE))
    content, kind = io.BytesIO(), "png" if max(small.size) <= _SIDE // 2 else "jpeg"
    small.save(content, kind)
    return f"data:image/{kind};base64,{base64.b64encode(content.getvalue()).decode()}"
