"""Data in the form of Pascal VOC, for detection and segmentation.

    JPEGImages/ID.jpg                        the images (also .png)
    Annotations/ID.xml                       boxes: object/name, object/bndbox/{xmin,ymin,xmax,ymax}, object/difficult
    SegmentationClass/ID.png                 a class for each pixel: 0 is background, 255 does not count
    ImageSets/{Main,Segmentation}/PART.txt   the ids of trainval and test, or of train and val

Of several folders (VOC2007, VOC2012) the first has both parts; the others add to what is learned from.

Shapes: C channels, H by W pixels, M boxes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import torch
from torch import Tensor

from selfadapt.core.errors import UserError
from selfadapt.data.images.storage import UnreadableImage, decode

VOID = 255
# what to learn from, and what to measure on; masks of the test part are often kept back
_PAIRS = {
    "Main": (("trainval", "test"), ("train", "val"), ("train", "test")),
    "Segmentation": (("train", "val"), ("trainval", "test"), ("train", "test")),
}


@dataclass(frozen=True)
class Boxes:
    """The objects of an image: corners (x1, y1, x2, y2), classes from 1 on, and those too hard to count."""

    boxes_M4: Tensor
    labels_M: Tensor
    difficult_M: Tensor


@dataclass(frozen=True)
class Sample:
    """An image of one of the folders."""

    root: Path
    id: str

    @property
    def image_file(self) -> Path:
        for suffix in (".jpg", ".png", ".jpeg"):
            path = self.root / "JPEGImages" / f"{self.id}{suffix}"
            if path.exists():
                return path
        raise UserError(f"{self.root / 'JPEGImages'} holds no image {self.id}")

    def image(self) -> Tensor:
        """C×H×W, from 0 to 1."""
        path = self.image_file
        try:
            return decode(path, channels=3, resize=None).float() / 255
        except UnreadableImage as error:
            raise UserError(f"{path} cannot be read: {error}") from error

    def mask(self) -> Tensor:
        """H×W, int64."""
        return torch.from_numpy(_mask(self).astype(np.int64))


@dataclass(frozen=True)
class VOC:
    """What to learn from and what to measure on: the first folder is measured on, and all are learned from."""

    classes: Sequence[str]  # without the background
    train: Sequence[Sample]
    test: Sequence[Sample]

    @classmethod
    def detection(cls, roots: Sequence[Path]) -> "VOC":
        train, test = _samples(roots, "Main")
        learned, measured = ({name for sample in part for name, *_ in _objects(sample)} for part in (train, test))
        for part, names in (("training", learned), ("test", measured)):
            if not names:
                raise UserError(f"no {part} image of {_words(roots)} has an object in Annotations/")
        for sample in (*train, *test):  # mistakes show before training
            _ = sample.image_file
        return cls(sorted(learned | measured), train, test)

    @classmethod
    def segmentation(cls, roots: Sequence[Path]) -> "VOC":
        train, test = _samples(roots, "Segmentation")
        largest = {
            sample: max((n for n in np.unique(_mask(sample)) if n != VOID), default=-1) for sample in (*train, *test)
        }
        most = int(max(largest.values()))
        if most < 1:
            raise UserError(f"no image of {_words(roots)} has a class other than background in SegmentationClass/")
        if max(largest[sample] for sample in test) < 0:
            raise UserError(f"no pixel of a test image of {roots[0]} counts: all of SegmentationClass/ is {VOID} there")
        for sample in (*train, *test):
            if sample.image().shape[1:] != sample.mask().shape:
                raise UserError(f"{sample.root}: the mask of {sample.id} is not of the size of its image")
        return cls([str(number) for number in range(1, most + 1)], train, test)

    def boxes(self, sample: Sample) -> Boxes:
        number = {name: position for position, name in enumerate(self.classes, start=1)}
        found = _objects(sample)
        return Boxes(
            torch.tensor([corners for _, corners, _ in found]).reshape(-1, 4),
            torch.tensor([number[name] for name, *_ in found], dtype=torch.int64),
            torch.tensor([difficult for *_, difficult in found], dtype=torch.bool),
        )


def _words(roots: Sequence[Path]) -> str:
    return ", ".join(str(root) for root in roots)


def _samples(roots: Sequence[Path], kind: str) -> tuple[list[Sample], list[Sample]]:
    """To learn from and to measure on: both parts of the first folder, and the former part of the others."""
    first, *others = roots
    lists = first / "ImageSets" / kind
    pair = next((pair for pair in _PAIRS[kind] if all((lists / f"{part}.txt").exists() for part in pair)), None)
    if pair is None:
        raise UserError(f"{first} is not in VOC's form: there is no {lists / 'train.txt'} with {lists / 'val.txt'}")
    train, test = (_listed(first, kind, part) for part in pair)
    if shared := set(train) & set(test):
        name = min(sample.id for sample in shared)
        raise UserError(f"{name} is in both {pair[0]}.txt and {pair[1]}.txt of {lists}")
    for root in others:
        if not (root / "ImageSets" / kind / f"{pair[0]}.txt").exists():
            raise UserError(
                f"{root} cannot be learned from beside {first}: there is no ImageSets/{kind}/{pair[0]}.txt in it"
            )
        train += _listed(root, kind, pair[0])
    if len(set(train)) < len(train):
        raise UserError(f"an image is listed twice in {pair[0]}.txt of {_words(roots)}; give each folder once")
    return train, test


def _listed(root: Path, kind: str, part: str) -> list[Sample]:
    path = root / "ImageSets" / kind / f"{part}.txt"
    found = [Sample(root, line.split()[0]) for line in _lines(path)]
    if not found:
        raise UserError(f"{path} names no image")
    return found


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _objects(sample: Sample) -> list[tuple[str, list[float], bool]]:
    """Names, corners and whether difficult. VOC counts pixels from 1 and includes the last: xmin = 1 is the edge."""
    path = sample.root / "Annotations" / f"{sample.id}.xml"
    try:
        tree = ElementTree.parse(path)
        found = []
        for entry in tree.getroot().iter("object"):
            box, name = entry.find("bndbox"), entry.findtext("name")
            corners = (
                [float(box.findtext(part, "")) for part in ("xmin", "ymin", "xmax", "ymax")] if box is not None else []
            )
            if not name or len(corners) != 4 or corners[0] > corners[2] or corners[1] > corners[3]:
                raise ValueError(f"the object {name!r} has no name, or no box with xmin <= xmax and ymin <= ymax")
            corners = [corners[0] - 1, corners[1] - 1, corners[2], corners[3]]
            found.append((name, corners, entry.findtext("difficult", "0").strip() == "1"))
        return found
    except (OSError, ValueError, ElementTree.ParseError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def _mask(sample: Sample) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    from PIL import Image

    path = sample.root / "SegmentationClass" / f"{sample.id}.png"
    try:
        with Image.open(path) as image:
            if image.mode not in ("P", "L"):
                raise ValueError(
                    f"it has mode {image.mode}; a palette or grey image is needed, whose values are classes"
                )
            return np.array(image)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
