"""Data in VOC's form: what is read of several folders, and what is wrong with them. And the set that is pasted."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from selfadapt.core.errors import UserError
from selfadapt.data.dataset import Samples
from selfadapt.data.images.storage import TensorImages
from selfadapt.data.sources.pasted_voc import write_pasted
from selfadapt.data.sources.voc import VOC, Sample

OBJECT = """<object><name>{0}</name><difficult>{1}</difficult><bndbox>
<xmin>{2}</xmin><ymin>{3}</ymin><xmax>{4}</xmax><ymax>{5}</ymax></bndbox></object>"""


def _folder(root: Path, parts: dict[str, list[str]], *objects: tuple[object, ...]) -> Path:
    """Grey images of 40 by 30 pixels, all with these objects."""
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / name).mkdir(parents=True)
    for part, ids in parts.items():
        (root / f"ImageSets/Main/{part}.txt").write_text("".join(f"{name}  1\n" for name in ids))
        for name in ids:
            Image.new("RGB", (40, 30), (51, 51, 51)).save(root / f"JPEGImages/{name}.png")
            found = "".join(OBJECT.format(*own) for own in objects)
            (root / f"Annotations/{name}.xml").write_text(f"<annotation>{found}</annotation>")
    return root


def test_the_first_folder_is_measured_on_and_all_are_learned_from(tmp_path: Path) -> None:
    first = _folder(tmp_path / "VOC2007", {"trainval": ["1", "2"], "test": ["3"]}, ("cat", 0, 1, 1, 40, 30))
    second = _folder(tmp_path / "VOC2012", {"trainval": ["1"]}, ("dog", 1, 11, 6, 20.5, 6))
    data = VOC.detection([first, second])
    assert data.classes == ["cat", "dog"]
    assert data.train == [Sample(first, "1"), Sample(first, "2"), Sample(second, "1")]
    assert data.test == [Sample(first, "3")]
    boxes = data.boxes(data.train[2])
    # the pixels 11 to 20.5 of a row, counted from 1 with the last included; and a row is a pixel high
    assert boxes.boxes_M4.tolist() == [[10, 5, 20.5, 6]]
    assert boxes.labels_M.tolist() == [2]
    assert boxes.difficult_M.tolist() == [True]
    assert data.boxes(data.test[0]).boxes_M4.tolist() == [[0, 0, 40, 30]]  # the whole image
    assert torch.equal(data.test[0].image(), torch.full((3, 30, 40), 0.2))


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    cat = ("cat", 0, 1, 1, 40, 30)
    first = _folder(tmp_path / "a", {"trainval": ["1"], "test": ["2"]}, cat)
    other = _folder(tmp_path / "b", {"train": ["1"], "val": ["2"]}, cat)
    with pytest.raises(UserError, match=r"b cannot be combined with .*no ImageSets/Main/trainval.txt"):
        VOC.detection([first, other])
    with pytest.raises(UserError, match="listed twice"):
        VOC.detection([first, first])
    (other / "ImageSets/Main/val.txt").write_text("1\n")
    with pytest.raises(UserError, match=r"1 is in both train.txt and val.txt"):
        VOC.detection([other])
    with pytest.raises(UserError, match=r"1.xml cannot be read: the object 'cat' has no name, or no box"):
        VOC.detection([_folder(tmp_path / "c", {"train": ["1"], "val": ["2"]}, ("cat", 0, 9, 1, 8, 30))])
    with pytest.raises(UserError, match="has an object in Annotations/"):
        VOC.detection([_folder(tmp_path / "d", {"train": ["1"], "val": ["2"]})])
    (first / "JPEGImages/2.png").unlink()
    with pytest.raises(UserError, match="contains no image 2"):
        VOC.detection([first])


def _pictures() -> Samples:
    """Ten pictures of one colour each, which tells them apart: 20, 40, …"""
    values = (torch.arange(1, 11) * 20).byte()[:, None, None, None].expand(10, 3, 8, 8).contiguous()
    labels = torch.arange(10) % 2
    return Samples(inputs=TensorImages(values), labels=labels, truth=labels, ids=[str(n) for n in range(10)])


def test_pasted_pictures_lie_in_their_boxes(tmp_path: Path) -> None:
    write_pasted(tmp_path / "set", _pictures(), ("even", "odd"), train=6, test=4, size=48)
    data = VOC.detection([tmp_path / "set"])
    assert data.classes == ["even", "odd"]
    assert (len(data.train), len(data.test)) == (6, 4)
    for part, pictures in ((data.train, range(5)), (data.test, range(5, 10))):
        for sample in part:
            image, boxes = sample.image(), data.boxes(sample)
            assert 1 <= len(boxes.labels_M) <= 3
            for (x1, y1, x2, y2), label in zip(boxes.boxes_M4.int().tolist(), boxes.labels_M.tolist(), strict=True):
                (colour,) = (image[:, y1:y2, x1:x2] * 255).round().unique().tolist()  # no canvas within
                number = round(colour / 20) - 1  # of the picture that has this colour
                assert number in pictures
                assert number % 2 + 1 == label
                around = image[:, max(y1 - 1, 0) : y2 + 1, max(x1 - 1, 0) : x2 + 1]
                assert len(around.unique()) > 1  # nor does it go on beyond


def test_a_pasted_set_follows_from_its_seed(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_pasted(tmp_path / name, _pictures(), ("even", "odd"), train=2, test=1, size=32, seed=seed)
    images = {name: np.stack([s.image() for s in VOC.detection([tmp_path / name]).train]) for name in "abc"}
    assert np.array_equal(images["a"], images["b"])
    assert not np.array_equal(images["a"], images["c"])
