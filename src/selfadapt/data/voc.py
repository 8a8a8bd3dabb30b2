"""Data in the form of Pascal VOC, for detection and segmentation.

    JPEGImages/ID.jpg                        the images (also .png)
    Annotations/ID.xml                       boxes: object/name, object/bndbox/{xmin,ymin,xmax,ymax}, object/difficult
    SegmentationClass/ID.png                 a class for each pixel: 0 is background, 255 does not count
    ImageSets/{Main,Segmentation}/PART.txt   the ids of trainval and test, or of train and val

Shapes: C channels, H by W pixels, M boxes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import torch
from torch import Tensor

from selfadapt.data.images import UnreadableImage, decode
from selfadapt.errors import UserError

VOID = 255
_PAIRS = (("trainval", "test"), ("train", "val"), ("train", "test"))  # what to learn from, and what to measure on


@dataclass(frozen=True)
class Boxes:
    """The objects of an image: corners (x1, y1, x2, y2), classes from 1 on, and those too hard to count."""

    boxes_M4: Tensor
    labels_M: Tensor
    difficult_M: Tensor


@dataclass(frozen=True)
class VOC:
    root: Path
    classes: Sequence[str]  # without the background
    train: Sequence[str]
    test: Sequence[str]

    @classmethod
    def detection(cls, root: Path) -> "VOC":
        train, test = _ids(root, "Main")
        learned, measured = ({name for sample in part for name, *_ in _objects(root, sample)} for part in (train, test))
        for part, names in (("training", learned), ("test", measured)):
            if not names:
                raise UserError(f"no {part} image of {root} has an object in Annotations/")
        found = cls(root, sorted(learned | measured), train, test)
        for sample in (*train, *test):  # mistakes show before training
            found.image_file(sample)
        return found

    @classmethod
    def segmentation(cls, root: Path) -> "VOC":
        train, test = _ids(root, "Segmentation")
        largest = {
            sample: max((n for n in np.unique(_mask(root, sample)) if n != VOID), default=-1)
            for sample in (*train, *test)
        }
        most = int(max(largest.values()))
        if most < 1:
            raise UserError(f"no image of {root} has a class other than background in SegmentationClass/")
        if max(largest[sample] for sample in test) < 0:
            raise UserError(f"no pixel of a test image of {root} counts: all of SegmentationClass/ is {VOID} there")
        found = cls(root, [str(number) for number in range(1, most + 1)], train, test)
        for sample in (*train, *test):
            if found.image(sample).shape[1:] != found.mask(sample).shape:
                raise UserError(f"{root}: the mask of {sample} is not of the size of its image")
        return found

    def image(self, sample: str) -> Tensor:
        """C×H×W, from 0 to 1."""
        path = self.image_file(sample)
        try:
            return decode(path, channels=3, resize=None).float() / 255
        except UnreadableImage as error:
            raise UserError(f"{path} cannot be read: {error}") from error

    def image_file(self, sample: str) -> Path:
        for suffix in (".jpg", ".png", ".jpeg"):
            path = self.root / "JPEGImages" / f"{sample}{suffix}"
            if path.exists():
                return path
        raise UserError(f"{self.root / 'JPEGImages'} holds no image {sample}")

    def boxes(self, sample: str) -> Boxes:
        number = {name: position for position, name in enumerate(self.classes, start=1)}
        found = _objects(self.root, sample)
        return Boxes(
            torch.tensor([corners for _, corners, _ in found]).reshape(-1, 4),
            torch.tensor([number[name] for name, *_ in found], dtype=torch.int64),
            torch.tensor([difficult for *_, difficult in found], dtype=torch.bool),
        )

    def mask(self, sample: str) -> Tensor:
        """H×W, int64."""
        return torch.from_numpy(_mask(self.root, sample).astype(np.int64))


def _ids(root: Path, kind: str) -> tuple[list[str], list[str]]:
    lists = root / "ImageSets" / kind
    for pair in _PAIRS:
        paths = [lists / f"{name}.txt" for name in pair]
        if all(path.exists() for path in paths):
            train, test = ([line.split()[0] for line in _lines(path)] for path in paths)
            if not train or not test:
                raise UserError(f"the lists in {lists} name no image")
            if shared := set(train) & set(test):
                raise UserError(f"{min(shared)} is in both {paths[0].name} and {paths[1].name} of {lists}")
            return train, test
    raise UserError(f"{root} is not in VOC's form: there is no {lists / 'train.txt'} with {lists / 'val.txt'}")


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _objects(root: Path, sample: str) -> list[tuple[str, list[float], bool]]:
    path = root / "Annotations" / f"{sample}.xml"
    try:
        tree = ElementTree.parse(path)
        found = []
        for entry in tree.getroot().iter("object"):
            box, name = entry.find("bndbox"), entry.findtext("name")
            corners = (
                [float(box.findtext(part, "")) for part in ("xmin", "ymin", "xmax", "ymax")] if box is not None else []
            )
            if not name or len(corners) != 4 or corners[0] >= corners[2] or corners[1] >= corners[3]:
                raise ValueError(f"the object {name!r} has no name, or no box with xmin < xmax and ymin < ymax")
            found.append((name, corners, entry.findtext("difficult", "0").strip() == "1"))
        return found
    except (OSError, ValueError, ElementTree.ParseError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def _mask(root: Path, sample: str) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    from PIL import Image

    path = root / "SegmentationClass" / f"{sample}.png"
    try:
        with Image.open(path) as image:
            if image.mode not in ("P", "L"):
                raise ValueError(
                    f"it has mode {image.mode}; a palette or grey image is needed, whose values are classes"
                )
            return np.array(image)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
