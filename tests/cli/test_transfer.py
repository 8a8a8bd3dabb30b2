"""Detection and segmentation from the command line, on pictures in VOC's form that are drawn here."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from cli.program import run, run_json

XML = """<annotation><object><name>{name}</name><difficult>0</difficult>
<bndbox><xmin>{0}</xmin><ymin>{1}</ymin><xmax>{2}</xmax><ymax>{3}</ymax></bndbox></object></annotation>"""


def _draw(root: Path, count: int, parts: tuple[str, str] = ("train", "val"), seed: int = 0) -> None:
    """Red squares and blue discs on grey, with their boxes and masks."""
    rng = np.random.default_rng(seed)
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
        (root / f"ImageSets/{kind}/{parts[0]}.txt").write_text("\n".join(str(i) for i in range(count - 4)))
        (root / f"ImageSets/{kind}/{parts[1]}.txt").write_text("\n".join(str(i) for i in range(count - 4, count)))


def _features(folder: Path, model: str, width: int = 64) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (8, 96, 96, 3), np.uint8)
    np.savez(folder / "images.npz", x_train=images, y_train=np.arange(8) % 2)
    options = ("--hidden", "8", "--dimensions", "4", "--epochs", "1", "--batch-size", "4", "--width", str(width))
    run_json("pretrain", "images.npz", "--model", model, *options, "--out", model, folder=folder)


@pytest.mark.slow
def test_a_detector_with_a_pyramid_trains_on_what_was_drawn(tmp_path: Path) -> None:
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


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A narrow network's features, and two folders of drawn pictures of which the second has no test part."""
    folder = tmp_path_factory.mktemp("transfer")
    _features(folder, "resnet-small", width=16)
    _draw(folder / "VOC2007", 8, ("trainval", "test"))
    _draw(folder / "VOC2012", 6, ("trainval", "later"), seed=1)
    return folder


C4 = ("--detector", "c4", "--image-size", "64", "--batch-size", "4", "--lr", "0.02")


def test_c4_learns_from_both_folders_and_is_measured_on_the_first(small: Path) -> None:
    result = run_json("transfer", "resnet-small", "VOC2007", "VOC2012", *C4, "--steps", "3", folder=small)
    assert result["images"] == 4
    for scores in (result, result["voc07"]):
        assert 0 <= scores["ap75"] <= scores["ap50"] <= 1
    assert "VOC2007+VOC2012 detection c4" in json.loads((small / "resnet-small/transfer.json").read_text())
    words = run("transfer", "resnet-small", "VOC2007", *C4, "--steps", "1", "--scratch", folder=small).stdout
    assert words.startswith("VOC 2007, 11 points: AP ")


def test_a_segmenter(small: Path) -> None:
    options = ("--task", "segmentation", "--steps", "20", "--lr", "0.02", "--batch-size", "3", "--image-size", "64")
    result = run_json("transfer", "resnet-small", "VOC2007", *options, folder=small)
    assert set(result) >= {"miou", "pixel_accuracy"}
    assert result["pixel_accuracy"] > 0.5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("VOC2007", "--task", "dreams"), "--task 'dreams' is not known; choose one of detection, segmentation"),
        (("VOC2007", "--detector", "c5"), "--detector 'c5' is not known; choose one of pyramid, c4"),
        (("VOC2007", "--task", "segmentation", "--detector", "c4"), "--detector c4 is for detection; leave it out"),
        (("nowhere", "--detector", "c4"), "not in VOC format"),
        (("VOC2007", "--detector", "c4", "--steps", "0"), "--steps 0 must be at least 1"),
        (("VOC2007", "--steps", "2", "--epochs", "2"), "give --steps or --epochs, not both"),
        (("VOC2007", "--detector", "c4", "--lr", "-1"), "--lr -1.0 must be above 0"),
        (("VOC2012", "--detector", "c4"), "VOC2012 is not in VOC format"),
        (("VOC2007", "VOC2007", "--detector", "c4"), "listed twice"),
        (("VOC2007",), "resnet-small is not a torchvision network"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(small: Path, words: tuple[str, ...], message: str) -> None:
    wrong = run("transfer", "resnet-small", *words, folder=small)
    assert wrong.returncode == 2
    assert message in wrong.stderr
    assert len(wrong.stderr.splitlines()) == 1


def test_c4_needs_a_residual_network(small: Path) -> None:
    _features(small, "alexnet", width=8)
    wrong = run("transfer", "alexnet", "VOC2007", "--detector", "c4", folder=small)
    assert wrong.returncode == 2
    assert "has the network alexnet; this needs a ResNet" in wrong.stderr
