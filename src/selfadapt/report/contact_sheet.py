"""A sheet of small pictures, each with its words below.

The SVG is written by hand: as forty axes of matplotlib it takes longer than a short training.
"""

import base64
import io
import re
import unicodedata
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from selfadapt.report.figures import INK
from selfadapt.report.results import whole_file

if TYPE_CHECKING:
    from selfadapt.report.figures import Matrix

_LETTERS = 12  # pixels, their height
_MOST_LINES = 8  # of a caption


def contact_sheet(images: Sequence["Matrix"], captions: Sequence[str], path: Path) -> None:
    """Write the sheet; images are H×W×C, uint8."""
    columns, side, gap, line = 8, 80, 8, 14  # pixels
    wrapped = [caption_lines(caption, side + gap / 2) for caption in captions]
    words = 6 + line * max(map(len, wrapped), default=1)  # the height of the longest caption
    cells = []
    for position, (image, lines) in enumerate(zip(images, wrapped, strict=True)):
        row, column = divmod(position, columns)
        x, y = gap + column * (side + gap), gap + row * (side + words)
        place = f'x="{x}" y="{y}" width="{side}" height="{side}"'
        cells.append(f'<image {place} style="image-rendering:pixelated" href="{_as_png(image)}"/>')
        for number, text in enumerate(lines):
            cells.append(f'<text x="{x + side / 2}" y="{y + side + 13 + number * line}">{escape(text)}</text>')
    width, height = gap + columns * (side + gap), gap + -(-len(images) // columns) * (side + words)
    style = f'font-family="sans-serif" font-size="{_LETTERS}" text-anchor="middle" fill="{INK}"'
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>', *cells, "</svg>"])
    with whole_file(path) as file:
        file.write(content)


def caption_lines(caption: str, width: float) -> list[str]:
    """A caption in lines of at most so many pixels, broken between words, else within; of a very long one both ends.

    An arrow stays with the word behind it.
    """
    lines = [""]
    for piece in re.split(r"(?<=[\s_/.-])(?<!→ )", caption):
        for part in [piece] if _pixels(piece.rstrip()) <= width else piece:
            if _pixels((lines[-1] + part).rstrip()) > width:
                lines.append("")
            lines[-1] += part
    lines = [line.strip() for line in lines]
    if len(lines) <= _MOST_LINES:
        return lines
    before, after = lines[: _MOST_LINES // 2], lines[-(_MOST_LINES - _MOST_LINES // 2) :]
    while _pixels(before[-1] + "…") > width:
        before[-1] = before[-1][:-1]
    return [*before[:-1], before[-1] + "…", *after]


def _pixels(text: str) -> float:
    """About how wide a text is, rather too much than too little, as browsers have fonts of their own."""
    return _LETTERS * sum(
        1.0 if sign in "mwMW→…%@" or unicodedata.east_asian_width(sign) in "WF"
        else 0.4 if sign in " iljftrI.,:;!|'()[]-"
        else 0.75 if sign.isupper()
        else 0.64
        for sign in text
    )  # fmt: skip


def _as_png(image: "Matrix") -> str:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
