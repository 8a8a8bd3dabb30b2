"""Contact sheets: small images in rows with captions, as an SVG file. The report shows their images as a grid.

The SVG is written directly: with matplotlib, forty axes take longer to draw than a short training.
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
from xml.etree import ElementTree

from selfadapt.core.atomic_files import atomic_write
from selfadapt.core.errors import UserError
from selfadapt.core.regular_files import read_regular
from selfadapt.report.figures import INK

if TYPE_CHECKING:
    from selfadapt.report.figures import Matrix

MARK = "#a4402b"  # the colour of frames
_FONT_SIZE = 12  # pixels
_MAX_LINES = 8  # of a caption
_PIXELATED = 48  # images narrower than this are enlarged without smoothing
_SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class Cell:
    """An image, H×W×C of uint8, its caption, and whether it is framed."""

    image: "Matrix"
    caption: str
    framed: bool = False


@dataclass(frozen=True)
class SheetImage:
    """An image of a contact sheet file."""

    source: str  # a data URL
    caption: str
    framed: bool

    @property
    def pixelated(self) -> bool:
        header = base64.b64decode(self.source.partition(",")[2][:32])  # of a PNG: the width is in bytes 16 to 19
        return int.from_bytes(header[16:20], "big") < _PIXELATED


def contact_sheet(blocks: Sequence[Sequence[Cell]], path: Path) -> None:
    """Write the contact sheet. Each block starts a new row."""
    columns, side, gap, line = 8, 80, 8, 14  # pixels
    elements, y = [], gap
    for block in blocks:
        elements.append("<g>")
        for first in range(0, len(block), columns):
            row = block[first : first + columns]
            captions = [caption_lines(cell.caption, side + gap / 2) for cell in row]
            for column, (cell, lines) in enumerate(zip(row, captions, strict=True)):
                x = gap + column * (side + gap)
                place = f'x="{x}" y="{y}" width="{side}" height="{side}"'
                image = f'<image {place} style="image-rendering:pixelated" href="{_as_png(cell.image)}">'
                elements.append(f"{image}<title>{escape(cell.caption)}</title></image>")
                if cell.framed:
                    elements.append(f'<rect {place} fill="none" stroke="{MARK}" stroke-width="4"/>')
                for number, text in enumerate(lines):
                    text_y = y + side + 13 + number * line
                    elements.append(f'<text x="{x + side / 2}" y="{text_y}">{escape(text)}</text>')
            y += side + 6 + line * max(map(len, captions))
        elements.append("</g>")
        y += gap
    width = gap + columns * (side + gap)
    font = f'font-family="sans-serif" font-size="{_FONT_SIZE}" text-anchor="middle" fill="{INK}"'
    style = f'{font} style="background:#fff"'  # captions stay readable on a dark page
    size = f'width="{width}" height="{y}" viewBox="0 0 {width} {y}"'
    content = "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>', *elements, "</svg>"])
    with atomic_write(path) as file:
        file.write(content)


def read_sheet(path: Path) -> list[list[SheetImage]]:
    """Read the blocks of a contact sheet; an empty list without a file. Sheets of older runs are one block."""
    if not path.exists():
        return []
    try:
        root = ElementTree.fromstring(read_regular(path))
        return [_read_block(block) for block in root.findall(f"{_SVG}g") or [root]]
    except (ElementTree.ParseError, IndexError, KeyError, ValueError) as error:
        raise UserError(f"{path} is damaged: {error}; delete it, or run selfadapt audit again") from error


def _read_block(block: ElementTree.Element) -> list[SheetImage]:
    images: list[tuple[ElementTree.Element, list[ElementTree.Element]]] = []
    for element in block:
        if element.tag == f"{_SVG}image":
            images.append((element, []))
        else:
            images[-1][1].append(element)
    found = []
    for image, others in images:
        texts = [element.text or "" for element in others if element.tag == f"{_SVG}text"]
        caption = image.findtext(f"{_SVG}title") or " ".join(texts)
        framed = any(element.tag == f"{_SVG}rect" for element in others)
        if not image.attrib["href"].startswith("data:image/png;base64,"):
            raise ValueError("an image is not part of the file")
        found.append(SheetImage(image.attrib["href"], caption, framed))
    return found


def caption_lines(caption: str, width: float) -> list[str]:
    """Break a caption into lines of at most `width` pixels, between words if possible.

    An arrow stays with the next word. Of a very long caption, the beginning and the end are kept.
    """
    lines = [""]
    for word in re.split(r"(?<=[\s_/.-])(?<!→ )", caption):
        for piece in [word] if _pixels(word.rstrip()) <= width else word:
            if _pixels((lines[-1] + piece).rstrip()) > width:
                lines.append("")
            lines[-1] += piece
    lines = [line.strip() for line in lines]
    if len(lines) <= _MAX_LINES:
        return lines
    before, after = lines[: _MAX_LINES // 2], lines[-(_MAX_LINES - _MAX_LINES // 2) :]
    while _pixels(before[-1] + "…") > width:
        before[-1] = before[-1][:-1]
    return [*before[:-1], before[-1] + "…", *after]


def _pixels(text: str) -> float:
    """An upper estimate of the width of a text, because fonts differ between browsers."""
    return _FONT_SIZE * sum(
        1.0 if character in "mwMW→…%@" or unicodedata.east_asian_width(character) in "WF"
        else 0.4 if character in " iljftrI.,:;!|'()[]-"
        else 0.75 if character.isupper()
        else 0.64
        for character in text
    )  # fmt: skip


def _as_png(image: "Matrix") -> str:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
