"""A sheet of small images in blocks, each with its caption below.

The SVG is written by hand: as forty axes of matplotlib it takes longer than a short training.
"""

import base64
import io
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from selfadapt.core.atomic_files import atomic_write
from selfadapt.report.figures import INK

if TYPE_CHECKING:
    from selfadapt.report.figures import Matrix

MARK = "#a4402b"  # the frame of an image that stands out
_LETTERS = 12  # pixels, their height
_MOST_LINES = 8  # of a caption


@dataclass(frozen=True)
class Cell:
    """An image, H×W×C of uint8, the text below it, and whether it is framed."""

    image: "Matrix"
    caption: str
    framed: bool = False


def contact_sheet(blocks: Sequence[Sequence[Cell]], path: Path) -> None:
    """Write the sheet; each block begins a new line."""
    columns, side, gap, line = 8, 80, 8, 14  # pixels
    cells, y = [], gap
    for block in blocks:
        for first in range(0, len(block), columns):
            row = block[first : first + columns]
            wrapped = [caption_lines(cell.caption, side + gap / 2) for cell in row]
            for column, (cell, lines) in enumerate(zip(row, wrapped, strict=True)):
                x = gap + column * (side + gap)
                place = f'x="{x}" y="{y}" width="{side}" height="{side}"'
                cells.append(f'<image {place} style="image-rendering:pixelated" href="{_as_png(cell.image)}"/>')
                if cell.framed:
                    cells.append(f'<rect {place} fill="none" stroke="{MARK}" stroke-width="4"/>')
                for number, text in enumerate(lines):
                    cells.append(f'<text x="{x + side / 2}" y="{y + side + 13 + number * line}">{escape(text)}</text>')
            y += side + 6 + line * max(map(len, wrapped))
        y += gap
    width = gap + columns * (side + gap)
    style = f'font-family="sans-serif" font-size="{_LETTERS}" text-anchor="middle" fill="{INK}"'
    size = f'width="{width}" height="{y}" viewBox="0 0 {width} {y}"'
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>', *cells, "</svg>"])
    with atomic_write(path) as file:
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
