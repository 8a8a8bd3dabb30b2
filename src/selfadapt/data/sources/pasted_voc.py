"""A small detection data set in VOC format, for machines without VOC: labelled images pasted onto noisy canvases.

Each canvas shows one to three images of random size that do not touch. Classification is as hard as for the images
themselves; localisation is easier than in photos, since the edges are straight.
"""

from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from selfadapt.core.atomic_files import atomic_folder
from selfadapt.core.errors import UserError
from selfadapt.core.rng import seeded
from selfadapt.data.dataset import Samples

_OBJECT = (
    "<object><name>{}</name><difficult>0</difficult>"
    "<bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"
)
_SIDES = (0.25, 0.5)  # smallest and largest image, relative to the canvas
_MOST = 3  # images on a canvas
_TRIES = 20  # attempts to find a free position
Placed = tuple[int, int, int, int, int]  # left, top, right, bottom, position of the image


def write_pasted(
    folder: Path, samples: Samples, classes: tuple[str, ...], *, train: int, test: int, size: int, seed: int = 0
) -> None:
    """Write canvases of `size` pixels. Training canvases show the first half of the samples, test canvases the rest."""
    from PIL import Image

    if len(samples) < 2 or samples.inputs.kind != "images":
        raise UserError("pasting images onto canvases needs a data set with at least two labelled test images")
    half = len(samples) // 2
    with atomic_folder(folder) as draft:
        for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
            (draft / name).mkdir(parents=True)
        for split, count, first, last in (("trainval", train, 0, half), ("test", test, half, len(samples))):
            names = [f"{split}{number:05d}" for number in range(count)]
            for name in names:
                generator = seeded(seed, "pasted", name)
                canvas_HWC, placed = _canvas(samples, first, last, size, generator)
                Image.fromarray(canvas_HWC.numpy()).save(draft / "JPEGImages" / f"{name}.png")
                objects = (
                    _OBJECT.format(classes[int(samples.labels[position])], left + 1, top + 1, right, bottom)
                    for left, top, right, bottom, position in placed
                )
                (draft / "Annotations" / f"{name}.xml").write_text(f"<annotation>{''.join(objects)}</annotation>")
            (draft / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(names))


def _canvas(
    samples: Samples, first: int, last: int, size: int, generator: torch.Generator
) -> tuple[Tensor, list[Placed]]:
    colour = 255 * torch.rand(3, 1, 1, generator=generator)
    canvas = colour + 25 * torch.randn(3, size, size, generator=generator)
    placed: list[Placed] = []
    for _ in range(int(torch.randint(1, _MOST + 1, (), generator=generator))):
        position = int(torch.randint(first, last, (), generator=generator))
        box = _free_box(placed, size, generator)
        if box is None:
            continue
        left, top, right, bottom = box
        image = samples.inputs.read(torch.tensor([position])).float()
        scaled = interpolate(image, (bottom - top, right - left), mode="bilinear", antialias=True)[0]
        canvas[:, top:bottom, left:right] = scaled  # greyscale images are broadcast to three channels
        placed.append((*box, position))
    return canvas.round().clamp(0, 255).byte().permute(1, 2, 0).contiguous(), placed


def _free_box(placed: list[Placed], size: int, generator: torch.Generator) -> tuple[int, int, int, int] | None:
    """Draw a square (left, top, right, bottom) that touches no other."""
    least, most = (round(size * share) for share in _SIDES)
    for _ in range(_TRIES):
        side = int(torch.randint(least, most + 1, (), generator=generator))
        left, top = torch.randint(0, size - side + 1, (2,), generator=generator).tolist()
        right, bottom = left + side, top + side
        if all(right < x1 or left > x2 or bottom < y1 or top > y2 for x1, y1, x2, y2, _ in placed):
            return left, top, right, bottom
    return None
