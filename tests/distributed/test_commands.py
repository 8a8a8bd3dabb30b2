"""Commands in several processes give what they give in one, and each process does a share of the work."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from cli.photographs import write_photos
from cli.program import process, run, run_json
from distributed.group import in_processes
from selfadapt.core import distributed
from selfadapt.data.images.storage import ImageFiles, TensorImages
from selfadapt.models.pretrained import features
from selfadapt.models.pretrained.features import features_of
from selfadapt.models.pretrained.timm_models import pretrained

pytestmark = pytest.mark.distributed
QUICK = ("--model", "mlp", "--epochs", "3", "--batch-size", "64", "--limit", "300", "--test-limit", "90")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two equal runs on digits, one for each number of processes, and images to predict."""
    path = tmp_path_factory.mktemp("shared")
    for name in ("one", "two"):
        options = ("--noise", "symmetric:0.3", "--targets", "sharded:float32")
        run_json("train", "digits", *QUICK, *options, "--out", name, folder=path)
    images = np.random.default_rng(0).integers(0, 256, (12, 8, 8), np.uint8)
    (path / "new").mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image).save(path / "new" / f"{number:02d}.png")
    (path / "new" / "07.png").write_text("no image")
    np.save(path / "many.npy", np.random.default_rng(1).integers(0, 256, (600, 8, 8), np.uint8))
    return path


def _both(folder: Path, *arguments: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a command gives of run `one` in one process, and of `two` in two."""
    command, *options = arguments
    one = run_json(command, "one", *options, folder=folder)
    return one, run_json(command, "two", *options, "--devices", "2", folder=folder, program=process)


def test_audit(folder: Path) -> None:
    one, two = _both(folder, "audit")
    assert {**two, "labels": "", "transition": ""} == {**one, "labels": "", "transition": ""}
    for name in ("labels.csv", "transition.csv"):
        assert (folder / "two" / name).read_bytes() == (folder / "one" / name).read_bytes()


def test_attack(folder: Path) -> None:
    one, two = _both(folder, "attack", "--with", "pgd3", "--eps", "0.1", "--batch-size", "20")
    assert two == one
    assert 0 < one["robust_accuracy"] < one["clean_accuracy"]
    outcomes = [sorted(file.read_text() for file in (folder / name / "attacks").iterdir()) for name in ("one", "two")]
    assert outcomes[0] == outcomes[1], "a stopped attack would not resume from the outcomes of both"


def test_shift(folder: Path) -> None:
    one, two = _both(folder, "shift", "--images", "40")
    assert two == one


@pytest.mark.parametrize("paths", [("new",), ("many.npy",), ("many.npy", "new", "many.npy")])
def test_predictions_keep_their_order(paths: tuple[str, ...], folder: Path) -> None:
    arguments = ("predict", "one", *paths, "--batch-size", "5")
    found = [process(*arguments, *options, folder=folder) for options in ((), ("--devices", "2"))]
    one, two = ([json.loads(line) for line in own.stdout.splitlines()] for own in found)
    assert [own.returncode for own in found] == [0, 0]
    confidences = [[own.pop("confidence", 0.0) for own in records] for records in (one, two)]  # none with an error
    assert confidences[1] == pytest.approx(confidences[0], abs=1e-6)
    assert two == one
    assert len(one) >= 12


def test_an_error_of_one_process_is_reported_at_once(folder: Path) -> None:
    (folder / "broken.npy").write_text("no array")
    result = process("predict", "one", "new", "broken.npy", "--batch-size", "5", "--devices", "2", folder=folder)
    assert (result.returncode, result.stdout.count("\n")) == (2, 12)
    assert result.stderr.count("error: broken.npy") == 1


def test_probe(tmp_path: Path) -> None:
    arguments = ("--model", "mlp", "--width", "16", "--hidden", "16", "--dimensions", "8", "--epochs", "1")
    for name in ("one", "two"):
        run_json("pretrain", "digits", *arguments, "--limit", "200", "--out", name, folder=tmp_path)
    one, two = _both(tmp_path, "probe", "--epochs", "3", "--augment", "crop", "--limit", "600")
    assert two == one
    classifiers = [next(iter((tmp_path / name / "features").glob("classifier-*"))) for name in ("one", "two")]
    assert classifiers[0].read_bytes() == classifiers[1].read_bytes()


def test_other_commands_run_in_one_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = run("coverage", "one", folder=folder)
    assert result.returncode == 2
    assert "`selfadapt coverage` runs in one process" in result.stderr


def test_embed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_photos(tmp_path / "photos", train=7, test=3)
    (tmp_path / "photos/train/palace/broken.jpg").write_text("no image")
    arguments = ("embed", "photos", "--model", "test_efficientnet", "--weights", "none", "--image-size", "32")
    for name, options in (("one", ()), ("two", ("--devices", "2"))):
        monkeypatch.setenv("SELFADAPT_HOME", str(tmp_path / name))
        content = run_json(*arguments, "--out", f"{name}.npz", *options, folder=tmp_path, program=process)
        assert (content["samples"], len(content["unreadable"])) == (20, 1)
    one, two = (np.load(tmp_path / f"{name}.npz") for name in ("one", "two"))
    assert set(one) == set(two)
    for name in one:
        if name.startswith("x_"):
            np.testing.assert_allclose(one[name], two[name], rtol=1e-5, atol=1e-7)
        else:
            np.testing.assert_array_equal(one[name], two[name])


def _features(folder: Path, images: ImageFiles | TensorImages, name: str) -> None:
    """Each process has its own cache, as on another machine, and counts what its network sees."""
    os.environ["SELFADAPT_HOME"] = str(folder / f"home-{distributed.rank()}")
    network = pretrained("test_efficientnet", weights="none", size=32)
    for tensor in network.backbone.state_dict().values():
        tensor.copy_(torch.ones_like(tensor) * 0.1)
    rows, count = features._rows, 0

    def counted(model: Any, images_BCHW: torch.Tensor, batch: int) -> torch.Tensor:
        nonlocal count
        count += len(images_BCHW)
        return rows(model, images_BCHW, batch)

    features._rows = counted
    found = features_of(images, network, workers=0)
    counts = distributed.all_gather_objects(count)
    if distributed.rank() == 0:
        torch.save(
            {"values": found.values_NF, "broken": list(found.broken), "taken": found.taken, "counts": counts},
            folder / f"{name}.pt",
        )


def test_every_process_computes_a_share_of_the_features(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", train=10)
    paths = sorted((tmp_path / "photos").rglob("*.jpg"))
    paths[3].write_text("no image")
    paths += [paths[3], paths[5]]  # the same content again
    images = ImageFiles(paths, (3, 1, 1))
    in_processes(1, _features, tmp_path, images.take(torch.arange(6)), "few")  # cached by one of them
    in_processes(2, _features, tmp_path, images, "two")
    in_processes(2, _features, tmp_path, images, "again")
    in_processes(1, _features, tmp_path / "photos", images, "one")
    one, two, again = (torch.load(tmp_path / name) for name in ("photos/one.pt", "two.pt", "again.pt"))
    torch.testing.assert_close(two["values"], one["values"], rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(again["values"], one["values"], rtol=0, atol=0, equal_nan=True)
    assert [position for position, _ in one["broken"]] == [3, 20]
    assert two["broken"] == again["broken"] == one["broken"]
    assert (two["taken"], two["counts"]) == (14, [7, 7])
    assert (again["taken"], again["counts"]) == (0, [0, 0])
    assert json.dumps(one["counts"]) == "[19]"
