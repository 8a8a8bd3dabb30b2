"""Detection and segmentation end to end, on pictures in VOC's form that are drawn here."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from cli.program import run, run_json

XML = """<annotation><object><name>{name}</name><difficult>0</difficult>
<bndbox><xmin>{0}</xmin><ymin>{1}</ymin><xmax>{2}</xmax><ymax>{3}</ymax></bndbox></object></annotation>"""


def _draw(root: Path, count: int) -> None:
    """Red squares and blue discs on grey, with their boxes and masks."""
    rng = np.random.default_rng(0)
    for part in ("JPEGImages", "Annotations", "SegmentationClass", "ImageSets/Main", "ImageSets/Segmentation"):
        (root / part).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        picture, mask = Image.new("RGB", (96, 96), (120, 120, 120)), Image.new("L", (96, 96), 0)
        x, y = (int(value) for value in rng.integers(5, 50, 2))
        box, disc = (x, y, x + 40, y + 40), number % 2
        for canvas, colour in ((picture, ((230, 20, 20), (20, 20, 230))[disc]), (mask, disc + 1)):
            pen = ImageDraw.Draw(canvas)
            (pen.ellipse if disc else pen.rectangle)(box, fill=colour)
        picture.save(root / f"JPEGImages/{number}.jpg", quality=95)
        mask.save(root / f"SegmentationClass/{number}.png")
        (root / f"Annotations/{number}.xml").write_text(XML.format(*box, name=("square", "disc")[disc]))
    for kind in ("Main", "Segmentation"):
        (root / f"ImageSets/{kind}/train.txt").write_text("\n".join(str(i) for i in range(count - 4)))
        (root / f"ImageSets/{kind}/val.txt").write_text("\n".join(str(i) for i in range(count - 4, count)))


def _features(folder: Path, model: str) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (8, 96, 96, 3), np.uint8)
    np.savez(folder / "large.npz", x_train=images, y_train=np.arange(8) % 2)
    options = ("--hidden", "8", "--dimensions", "4", "--epochs", "1", "--batch-size", "4")
    run_json("pretrain", "large.npz", "--model", model, *options, "--out", model, folder=folder)


@pytest.mark.slow
def test_a_detector_trains_on_what_was_drawn(tmp_path: Path) -> None:
    _draw(tmp_path / "voc", 6)
    _features(tmp_path, "resnet18")
    for extra in ((), ("--scratch",)):
        options = ("--epochs", "1", "--image-size", "64", "--batch-size", "2", *extra)
        result = run_json("transfer", "resnet18", "voc", *options, folder=tmp_path)
        assert 0 <= result["ap"] <= result["ap50"] <= 1
        assert result["images"] == 4
    assert set(json.loads((tmp_path / "resnet18/transfer.json").read_text())) == {
        "voc detection scratch",
        "voc detection",
    }


@pytest.mark.slow
def test_a_segmenter_and_mistakes(tmp_path: Path) -> None:
    _draw(tmp_path / "voc", 7)
    _features(tmp_path, "resnet50")
    options = ("--task", "segmentation", "--epochs", "3", "--lr", "0.02", "--batch-size", "3")
    result = run_json("transfer", "resnet50", "voc", *options, folder=tmp_path)
    assert set(result) >= {"miou", "pixel_accuracy"}
    assert result["pixel_accuracy"] > 0.5
    void = Image.new("L", (96, 96), 255)
    void.save(tmp_path / "voc/SegmentationClass/0.png")  # an image of which no pixel counts
    alone = (*options[:2], "--epochs", "1", "--batch-size", "1")
    assert run_json("transfer", "resnet50", "voc", *alone, folder=tmp_path)["miou"] > 0
    (tmp_path / "voc/Annotations/1.xml").write_text("<annotation>")
    for arguments, words in (
        (("resnet50", "voc", "--task", "dreams"), "is not known"),
        (("resnet50", "nowhere"), "not in VOC's form"),
        (("resnet50", "voc"), "1.xml cannot be read"),
        (("resnet50", "voc", "--epochs", "0"), "must be at least 1"),
    ):
        wrong = run("transfer", *arguments, folder=tmp_path)
        assert wrong.returncode == 2
        assert words in wrong.stderr
