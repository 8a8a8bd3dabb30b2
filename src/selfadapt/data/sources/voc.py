"""Data in the format of Pascal VOC, for detection and segmentation.

    JPEGImages/ID.jpg                        the images (also .png)
    Annotations/ID.xml                       boxes: object/name, object/bndbox/{xmin,ymin,xmax,ymax}, object/difficult
    SegmentationClass/ID.png                 a class for each pixel: 0 is background, 255 is ignored
    ImageSets/{Main,Segmentation}/SPLIT.txt  the ids of trainval and test, or of train and val

Of several folders (VOC2007, VOC2012), the first provides training and test split; the others add training samples.

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
from selfadapt.core.regular_files import read_regular
from selfadapt.data.images.decode import UnreadableImage, decode, open_image

VOID = 255
# Training and test split, in order of preference; masks of the test split are often not published.
_PAIRS = {
    "Main": (("trainval", "test"), ("train", "val"), ("train", "test")),
    "Segmentation": (("train", "val"), ("trainval", "test"), ("train", "test")),
}


@dataclass(frozen=True)
class Boxes:
    """The objects of an image: corners (x1, y1, x2, y2), classes from 1 on, and whether each is difficult."""

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
        raise UserError(f"{self.root / 'JPEGImages'} contains no image {self.id}.jpg or .png, which ImageSets/ lists")

    def image(self) -> Tensor:
        """Decode the image: C×H×W, 0..1."""
        path = self.image_file
        try:
            return decode(path, channels=3, resize=None).float() / 255
        except UnreadableImage as error:
            raise UserError(f"{path} cannot be read: {error}; replace it") from error

    def mask(self) -> Tensor:
        """Decode the segmentation mask: H×W, int64."""
        return torch.from_numpy(_mask(self).astype(np.int64))


@dataclass(frozen=True)
class VOC:
    """Training and test samples; the test samples come from the first folder."""

    classes: Sequence[str]  # without the background
    train: Sequence[Sample]
    test: Sequence[Sample]

    @classmethod
    def detection(cls, roots: Sequence[Path]) -> "VOC":
        train, test = _samples(roots, "Main")
        names = {
            split: {name for sample in samples for name, *_ in _objects(sample)}
            for split, samples in (("training", train), ("test", test))
        }
        for split, found in names.items():
            if not found:
                raise UserError(f"no {split} image of {_listing(roots)} has an object in Annotations/")
        for sample in (*train, *test):  # reports missing files before training
            _ = sample.image_file
        return cls(sorted(names["training"] | names["test"]), train, test)

    @classmethod
    def segmentation(cls, roots: Sequence[Path]) -> "VOC":
        train, test = _samples(roots, "Segmentation")
        largest = {
            sample: max((n for n in np.unique(_mask(sample)) if n != VOID), default=-1) for sample in (*train, *test)
        }
        most = int(max(largest.values()))
        if most < 1:
            raise UserError(f"no image of {_listing(roots)} has a class other than background in SegmentationClass/")
        if max(largest[sample] for sample in test) < 0:
            raise UserError(f"all pixels of the test images of {roots[0]} are {VOID} (ignored) in SegmentationClass/")
        for sample in (*train, *test):
            if sample.image().shape[1:] != sample.mask().shape:
                raise UserError(f"{sample.root}: the mask of {sample.id} has a different size than its image")
        return cls([str(number) for number in range(1, most + 1)], train, test)

    def boxes(self, sample: Sample) -> Boxes:
        index = {name: k for k, name in enumerate(self.classes, start=1)}
        found = _objects(sample)
        return Boxes(
            torch.tensor([corners for _, corners, _ in found]).reshape(-1, 4),
            torch.tensor([index[name] for name, *_ in found], dtype=torch.int64),
            torch.tensor([difficult for *_, difficult in found], dtype=torch.bool),
        )


def _listing(roots: Sequence[Path]) -> str:
    return ", ".join(str(root) for root in roots)


def _samples(roots: Sequence[Path], kind: str) -> tuple[list[Sample], list[Sample]]:
    """Return training and test samples: both splits of the first folder, and the training splits of the others."""
    first, *others = roots
    lists = first / "ImageSets" / kind
    pair = next((pair for pair in _PAIRS[kind] if all((lists / f"{split}.txt").exists() for split in pair)), None)
    if pair is None:
        raise UserError(f"{first} is not in VOC format: {lists / 'train.txt'} and {lists / 'val.txt'} are missing")
    train, test = (_read_list(first, kind, split) for split in pair)
    if shared := set(train) & set(test):
        name = min(sample.id for sample in shared)
        raise UserError(f"{name} is in both {pair[0]}.txt and {pair[1]}.txt of {lists}; remove it from one of them")
    for root in others:
        if not (root / "ImageSets" / kind / f"{pair[0]}.txt").exists():
            raise UserError(f"{root} cannot be combined with {first}: it has no ImageSets/{kind}/{pair[0]}.txt")
        train += _read_list(root, kind, pair[0])
    if len(set(train)) < len(train):
        raise UserError(f"an image is listed twice in {pair[0]}.txt of {_listing(roots)}; give each folder once")
    return train, test


def _read_list(root: Path, kind: str, split: str) -> list[Sample]:
    path = root / "ImageSets" / kind / f"{split}.txt"
    lines = read_regular(path).decode().splitlines()
    samples = [Sample(root, line.split()[0]) for line in lines if line.strip()]
    if not samples:
        raise UserError(f"{path} lists no images")
    return samples


def _objects(sample: Sample) -> list[tuple[str, list[float], bool]]:
    """Return name, corners and difficulty of each object. VOC counts pixels from 1 and includes the last one."""
    path = sample.root / "Annotations" / f"{sample.id}.xml"
    try:
        tree = ElementTree.fromstring(read_regular(path))
        found = []
        for entry in tree.iter("object"):
            box, name = entry.find("bndbox"), entry.findtext("name")
            corners = (
                [float(box.findtext(side, "")) for side in ("xmin", "ymin", "xmax", "ymax")] if box is not None else []
            )
            if not name or len(corners) != 4 or corners[0] > corners[2] or corners[1] > corners[3]:
                raise ValueError(f"the object {name!r} has no name, or no box with xmin <= xmax and ymin <= ymax")
            corners = [corners[0] - 1, corners[1] - 1, corners[2], corners[3]]
            found.append((name, corners, entry.findtext("difficult", "0").strip() == "1"))
        return found
    except (OSError, ValueError, ElementTree.ParseError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def _mask(sample: Sample) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    path = sample.root / "SegmentationClass" / f"{sample.id}.png"
    try:
        with open_image(path) as image:
            if image.mode not in ("P", "L"):
                raise ValueError(
                    f"it has mode {image.mode}; save it as a palette or greyscale image whose values are classes"
                )
            return np.array(image)
    except UnreadableImage as error:
        raise UserError(f"{path} cannot be read: {error}") from error
