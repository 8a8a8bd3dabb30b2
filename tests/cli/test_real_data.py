"""Training on data as users have them: folders, tables, named sets."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cli.program import run, run_json
from selfadapt.data.sources.download import FASHION_MNIST_FILES


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SELFADAPT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """200 JPEGs of two classes, bright and dark, two of them broken."""
    generator = np.random.default_rng(0)
    for position in range(200):
        kind = ("dark", "light")[position % 2]
        pixels = generator.integers(0, 100, (16, 16, 3)) + 120 * (position % 2)
        path = tmp_path / "photos" / kind / f"{position}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    (tmp_path / "photos" / "dark" / "0.jpg").write_bytes(b"no picture")
    half = tmp_path / "photos" / "light" / "1.jpg"
    half.write_bytes(half.read_bytes()[:200])
    return tmp_path / "photos"


PHOTOS = ("--epochs", "4", "--width", "4", "--noise", "symmetric:0.2")


def test_a_folder_with_broken_files_trains(photos: Path, home: Path, tmp_path: Path) -> None:
    result = run_json("train", "photos", *PHOTOS, "--out", "run", folder=tmp_path)
    assert result["unreadable"] == 2
    assert result["validation_accuracy"] > 0.6
    rows = (tmp_path / "run" / "unreadable.csv").read_text().splitlines()
    assert {row.split(",")[0] for row in rows[1:]} == {"dark/0.jpg", "light/1.jpg"}
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "2 files could not be read" in page
    assert "<li>dark/0.jpg: " in page
    labels = (tmp_path / "run" / "labels.csv").read_text().splitlines()
    assert len(labels) == 1 + 198, "every readable file is judged, those held out too"
    assert str(photos) in labels[1]


def test_streaming_gives_what_the_decoded_copy_gives(photos: Path, home: Path, tmp_path: Path) -> None:
    (photos / "dark" / "0.jpg").unlink()
    (photos / "light" / "1.jpg").unlink()
    kept = run_json("train", "photos", *PHOTOS, "--out", "kept", folder=tmp_path)
    streamed = run_json("train", "photos", *PHOTOS, "--stream", "--out", "streamed", folder=tmp_path)
    assert (tmp_path / "kept" / "labels.csv").read_text() == (tmp_path / "streamed" / "labels.csv").read_text()
    assert kept["validation_accuracy"] == streamed["validation_accuracy"]


def test_a_run_finds_its_samples_by_id(photos: Path, home: Path, tmp_path: Path) -> None:
    run_json("train", "photos", *PHOTOS, "--out", "run", folder=tmp_path)
    before = run_json("audit", "run", folder=tmp_path)
    (photos / "dark" / "aaa.jpg").write_bytes((photos / "dark" / "2.jpg").read_bytes())
    after = run("audit", "run", "--json", folder=tmp_path)
    assert json.loads(after.stdout) == before
    (photos / "dark" / "4.jpg").unlink()
    gone = run("audit", "run", folder=tmp_path)
    assert gone.returncode == 2
    assert "1 samples of run are gone from the data, such as dark/4.jpg" in gone.stderr


def test_a_table_trains(photos: Path, home: Path, tmp_path: Path) -> None:
    lines = ["path,label,split"]
    for position in range(2, 200):
        kind = ("dark", "light")[position % 2]
        lines.append(f"{kind}/{position}.jpg,{kind},{'test' if position > 160 else 'train'}")
    (photos / "list.csv").write_text("\n".join(lines))
    result = run_json("train", "photos/list.csv", "--epochs", "4", "--width", "4", "--out", "run", folder=tmp_path)
    assert result["test_accuracy"] > 0.8
    assert result["label_recovery"] is None


def test_16_bit_images_of_a_sorted_folder(home: Path, tmp_path: Path) -> None:
    """A limit takes of each class, a perceptron takes resized crops, and new files are read on the run's scale."""
    rng = np.random.default_rng(0)

    def save(path: Path, level: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(level, level + 500, (8, 8)).astype(np.uint16)).save(path)

    for kind, level in (("dark", 0), ("light", 3500)):
        for part, count in (("train", 30), ("val", 10), ("test", 10)):
            for number in range(count):
                save(tmp_path / f"scans/{part}/{kind}/{number}.png", level)
        save(tmp_path / f"new/{kind}.png", level)
    save(tmp_path / "new/other.png", 60000)
    Image.fromarray(np.full((8, 8), 255, np.uint8)).save(tmp_path / "new/eight.png")
    options = ("--limit", "24", "--test-limit", "8", "--model", "mlp", "--augment", "resized-crop", "--epochs", "5")
    result = run_json("train", "scans", *options, "--batch-size", "8", "--out", "run", folder=tmp_path)
    content = json.loads((tmp_path / "run/run.json").read_text())
    assert content["data"]["white"] == 4095
    assert content["data"]["samples"] == {"train": 24, "validation": 8, "test": 8}
    assert (tmp_path / "run/samples.csv").read_text().count(",dark,") == 16
    assert result["test_accuracy"] == 1
    for number in range(10):  # had the class of the first so many been tested alone, this would change nothing
        shutil.copy(tmp_path / "new/dark.png", tmp_path / f"scans/test/light/{number}.png")
    worse = run_json("train", "scans", *options, "--batch-size", "8", "--out", "worse", folder=tmp_path)
    assert worse["test_accuracy"] == 0.5
    lines = run("predict", "run", *sorted((tmp_path / "new").iterdir()), folder=tmp_path).stdout.splitlines()
    answers = {Path(line["path"]).stem: line for line in map(json.loads, lines)}
    assert {name: answers[name]["class"] for name in ("dark", "light", "eight")} == {
        "dark": "dark", "light": "light", "eight": "light",
    }  # fmt: skip
    assert "exceeds the white level 4095 of these data" in answers["other"]["error"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="no npm on this machine")
def test_real_cifar10_trains(home_with_cifar10: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = home_with_cifar10
    monkeypatch.setenv("SELFADAPT_HOME", str(home))
    got = run_json("data", "get", "cifar10", folder=tmp_path)
    assert got == {"name": "cifar10", "path": str(home / "data" / "cifar10"), "images": 60_000, "verified": True}
    result = run_json(
        "train", "cifar10", "--limit", "2000", "--test-limit", "1000", "--epochs", "3", "--width", "8",
        "--noise", "asymmetric:0.4", "--out", "run", folder=tmp_path,
    )  # fmt: skip
    assert result["noise"]["actual"] == pytest.approx(0.2, abs=0.03)
    assert result["test_accuracy"] > 0.15
    assert run_json("data", "list", folder=tmp_path)["sets"]["cifar10"]


@pytest.mark.slow
@pytest.mark.skipif(not FASHION_MNIST_FILES.exists(), reason="Debian's package dataset-fashion-mnist is not installed")
def test_real_fashion_mnist_trains(home: Path, tmp_path: Path) -> None:
    assert run_json("data", "get", "fashion-mnist", folder=tmp_path)["images"] == 70_000
    result = run_json(
        "train", "fashion-mnist", "--limit", "2000", "--test-limit", "1000", "--epochs", "3", "--width", "8",
        "--noise", "symmetric:0.4", "--out", "run", folder=tmp_path,
    )  # fmt: skip
    assert result["test_accuracy"] > 0.3
