"""A small detection set in VOC's form, for machines without VOC: labelled pictures pasted onto noisy canvases.

One to three pictures, drawn larger or smaller, lie on a canvas without touching. What they are has to be seen in them;
where they are is easier than in photos, since their edges are straight.
"""

from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from selfadapt.core.errors import UserError
from selfadapt.core.rng import seeded
from selfadapt.data.dataset import Samples
from selfadapt.data.sources.download import appearing

_OBJECT = (
    "<object><name>{}</name><difficult>0</difficult>"
    "<bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"
)
_SIDES = (0.25, 0.5)  # of a picture, as shares of the canvas
_MOST = 3  # pictures on a canvas
_TRIES = 20  # to find a free place
Placed = tuple[int, int, int, int, int]  # left, top, right, bottom, position of the picture


def write_pasted(
    folder: Path, pictures: Samples, classes: tuple[str, ...], *, train: int, test: int, size: int, seed: int = 0
) -> None:
    """Write canvases of `size` pixels. Those of the test show other pictures (the second half) than those to learn."""
    from PIL import Image

    if len(pictures) < 2 or len(pictures.inputs.shape) != 3:
        raise UserError("to paste pictures onto canvases, a set with at least two labelled test images is needed")
    half = len(pictures) // 2
    with appearing(folder) as draft:
        for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
            (draft / name).mkdir(parents=True)
        for part, count, first, last in (("trainval", train, 0, half), ("test", test, half, len(pictures))):
            names = [f"{part}{number:05d}" for number in range(count)]
            for name in names:
                generator = seeded(seed, "pasted", name)
                canvas_HWC, placed = _canvas(pictures, first, last, size, generator)
                Image.fromarray(canvas_HWC.numpy()).save(draft / "JPEGImages" / f"{name}.png")
                labels = [classes[int(pictures.labels[position])] for *_, position in placed]
                objects = (
                    _OBJECT.format(label, left + 1, top + 1, right, bottom)
                    for label, (left, top, right, bottom, _) in zip(labels, placed, strict=True)
                )
                (draft / "Annotations" / f"{name}.xml").write_text(f"<annotation>{''.join(objects)}</annotation>")
            (draft / "ImageSets" / "Main" / f"{part}.txt").write_text("\n".join(names))


def _canvas(
    pictures: Samples, first: int, last: int, size: int, generator: torch.Generator
) -> tuple[Tensor, list[Placed]]:
    colour = 255 * torch.rand(3, 1, 1, generator=generator)
    canvas = colour + 25 * torch.randn(3, size, size, generator=generator)
    placed: list[Placed] = []
    for _ in range(int(torch.randint(1, _MOST + 1, (), generator=generator))):
        position = int(torch.randint(first, last, (), generator=generator))
        box = _free_place(placed, size, generator)
        if box is None:
            continue
        left, top, right, bottom = box
        picture = pictures.inputs.read(torch.tensor([position])).float()
        scaled = interpolate(picture, (bottom - top, right - left), mode="bilinear", antialias=True)[0]
        canvas[:, top:bottom, left:right] = scaled  # one channel fills all three
        placed.append((*box, position))
    return canvas.round().clamp(0, 255).byte().permute(1, 2, 0).contiguous(), placed


def _free_place(placed: list[Placed], size: int, generator: torch.Generator) -> tuple[int, int, int, int] | None:
    """Left, top, right and bottom of a square that touches no other."""
    least, most = (round(size * share) for share in _SIDES)
    for _ in range(_TRIES):
        side = int(torch.randint(least, most + 1, (), generator=generator))
        left, top = torch.randint(0, size - side + 1, (2,), generator=generator).tolist()
        right, bottom = left + side, top + side
        if all(right < x1 or left > x2 or bottom < y1 or top > y2 for x1, y1, x2, y2, _ in placed):
            return left, top, right, bottom
    return None
