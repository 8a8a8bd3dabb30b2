"""Features in shards: written by embed, resumed, verified, and trained on."""

import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from cli.photographs import write_photos
from cli.program import process, run, run_json
from forks import Program
from selfadapt.core.errors import Interrupted
from selfadapt.data.shards.manifest import write_shard
from selfadapt.models.pretrained import features

EMBED = ("embed", "photos", "--model", "test_efficientnet", "--weights", "network.safetensors", "--image-size", "32")
SHARDS = (*EMBED, "--shard-size", "4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Photos, one of which is broken, and their features in a single file."""
    path = tmp_path_factory.mktemp("embedded")
    write_photos(path / "photos", train=9, test=3)
    broken = path / "photos/train/palace/0.jpg"
    broken.write_bytes(broken.read_bytes()[:-200])
    save_file(timm.create_model("test_efficientnet").state_dict(), path / "network.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SELFADAPT_HOME", str(path / "home"))
        run_json(*EMBED, "--out", "one.npz", folder=path)
        yield path


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The images that went through the network, batch by batch."""
    counts: list[int] = []
    rows = features._rows

    def counted(model: Any, images_BCHW: torch.Tensor, batch: int) -> torch.Tensor:
        counts.append(len(images_BCHW))
        return rows(model, images_BCHW, batch)

    monkeypatch.setattr(features, "_rows", counted)
    return counts


def _check(path: Path, expected: Path) -> None:
    """The shards hold what the single file holds, in its order."""
    one = np.load(expected)
    for split, own in (("train", path), ("test", path / "test")):
        manifest = json.loads((own / "manifest.json").read_text())
        assert (manifest["format"], manifest["version"]) == ("selfadapt-features", 1)
        shards = [np.load(own / entry["file"]) for entry in manifest["shards"]]
        assert [entry["samples"] for entry in manifest["shards"]] == [len(shard["features"]) for shard in shards]
        for column, name in (("features", "x"), ("labels", "y"), ("ids", "id")):
            np.testing.assert_array_equal(np.concatenate([shard[column] for shard in shards]), one[f"{name}_{split}"])


def test_shards_hold_what_a_file_holds(folder: Path) -> None:
    found = run_json(*SHARDS, "--out", "shards", folder=folder)
    assert (found["samples"], found["path"]) == (23, "shards")
    assert [own["id"] for own in found["unreadable"]] == ["train/palace/0.jpg"]
    _check(folder / "shards", folder / "one.npz")
    again = run_json(*SHARDS, "--out", "shards", folder=folder)
    assert again == {**found, "images_per_second": None}


def test_two_processes_share_the_shards(folder: Path) -> None:
    found = run_json(*SHARDS, "--out", "two", "--devices", "2", folder=folder, program=process)
    assert (found["samples"], len(found["unreadable"])) == (23, 1)
    _check(folder / "two", folder / "one.npz")


def test_an_interrupted_command_resumes_after_its_shards(
    folder: Path, seen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = []

    def interrupted(*given: Any, **arrays: Any) -> Any:
        numbers.append(given[1])
        if len(numbers) == 6:  # the test split has two shards, and is written first
            raise Interrupted("stopped by a signal")
        return write_shard(*given, **arrays)

    with monkeypatch.context() as patch:
        patch.setattr("selfadapt.runs.inspect.embedding.write_shard", interrupted)
        stopped = run(*SHARDS, "--out", "stopped", folder=folder)
    assert stopped.returncode == 130
    assert "finished shards are kept, and the same command resumes" in stopped.stderr
    refused = run("train", "stopped", folder=folder)
    assert refused.returncode == 2
    assert "stopped is incomplete" in refused.stderr
    seen.clear()
    run_json(*SHARDS, "--out", "stopped", folder=folder)
    assert sum(seen) == 4 + 2  # the last two shards
    _check(folder / "stopped", folder / "one.npz")


@pytest.mark.slow
def test_a_killed_command_resumes(folder: Path) -> None:
    program = Program(*SHARDS, "--out", "killed", folder=folder)
    while program.poll() is None and not (folder / "killed/00001.npz").exists():
        time.sleep(0.002)
    program.kill()
    run_json(*SHARDS, "--out", "killed", folder=folder)
    _check(folder / "killed", folder / "one.npz")


def test_a_damaged_shard_is_computed_again(folder: Path, seen: list[int]) -> None:
    run_json(*SHARDS, "--out", "damaged", folder=folder)
    path = folder / "damaged/00002.npz"
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    seen.clear()
    with warnings.catch_warnings(action="always"):
        result = run(*SHARDS, "--out", "damaged", folder=folder)
    assert "1 shards of damaged are damaged and are computed again, such as 00002.npz" in result.stderr
    assert sum(seen) == 3
    assert len(json.loads((folder / "damaged/manifest.json").read_text())["source"]["unreadable"]) == 1
    _check(folder / "damaged", folder / "one.npz")


def test_another_network_or_a_folder_in_use_is_refused(folder: Path) -> None:
    run_json(*SHARDS, "--out", "taken", folder=folder)
    for options, message in (
        (("--shard-size", "5"), "taken/test holds features of other images"),
        (("--shard-size", "0"), "--shard-size 0 must be at least 1"),
        (("--out", "photos"), "photos/test is not empty"),
        (("--out", "features.csv"), "must end with .npz for a file, or have no suffix for a folder"),
    ):
        result = run(*SHARDS, "--out", "taken", *options, folder=folder)
        assert result.returncode == 2
        assert message in result.stderr


def test_shards_train_as_the_file_does(folder: Path) -> None:
    run_json(*SHARDS, "--out", "trained", folder=folder)
    results = []
    for source in ("one.npz", "trained"):
        run_json("train", source, "--out", f"run-{source}", folder=folder)
        results.append((folder / f"run-{source}/labels.csv").read_text().splitlines())
        assert len(results[-1]) == 24
    columns = results[0][0].split(",")
    skipped = {columns.index("path"), columns.index("relative_path")}  # a position in the single file
    cells = [[[c for i, c in enumerate(row.split(",")) if i not in skipped] for row in rows] for rows in results]
    assert cells[0] == cells[1]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param("labels", "shards has no labels; write them to the shards", id="no labels"),
        pytest.param("nan", "feature 1 of sample 2 is nan", id="not finite"),
        pytest.param("ids", "1 ids occur more than once", id="repeated ids"),
        pytest.param("width", "has 4 features and", id="of different widths"),
    ],
)
def test_what_shards_lack_is_named(damage: str, message: str, tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "features": np.zeros((4, 3), np.float32), "ids": np.array(list("abcd")), "labels": np.array([0, 1, 0, 1]),
    }  # fmt: skip
    if damage == "labels":
        del arrays["labels"]
    elif damage == "nan":
        arrays["features"][2, 1] = np.nan
    elif damage == "ids":
        arrays["ids"][1] = "a"
    (tmp_path / "shards").mkdir()
    np.savez(tmp_path / "shards/1.npz", **arrays)
    if damage == "width":
        np.savez(tmp_path / "shards/2.npz", **{**arrays, "features": np.zeros((4, 4), np.float32)})
    result = run("train", "shards", folder=tmp_path)
    assert result.returncode == 2
    assert message in result.stderr
