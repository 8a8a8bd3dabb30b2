"""Image files packed into tar shards: what other programs read there, and what a run on them gives."""

import builtins
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from cli.program import outcome, run, run_json
from selfadapt.data.images.decode import UnreadableImage, decode
from selfadapt.data.images.packed_files import image_bytes
from selfadapt.data.sources.catalog import kind_of, open_data
from selfadapt.data.tabular.table_file import TableColumns

SPLITS = {"train": 24, "val": 6, "test": 6}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """zoo/ with train, val and test, sizes that differ, an image of 16 bits and one that is broken; packed/ of it."""
    root = tmp_path_factory.mktemp("packed")
    generator = np.random.default_rng(0)
    for split, count in SPLITS.items():
        for number in range(count):
            place = root / "zoo" / split / ("cat", "dög")[number % 2]
            place.mkdir(parents=True, exist_ok=True)
            pixels = generator.integers(0, 100, (12, 10 + number % 3, 3)) + 100 * (number % 2)
            Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number}.{('png', 'JPG')[number % 2]}", "PNG")
    Image.fromarray(generator.integers(0, 4000, (12, 12)).astype(np.uint16)).save(root / "zoo/train/cat/deep.png")
    (root / "zoo/train/cat/broken.png").write_bytes(b"no image")
    result = run_json("data", "pack", "zoo", "packed", "--shard-size", "1", folder=root)
    assert result["images"] == sum(SPLITS.values()) + 1
    assert [sample_id for sample_id, _ in result["unreadable"]] == ["train/cat/broken.png"]
    return root


def test_the_shards_are_those_of_webdataset(folder: Path) -> None:
    """Members of a sample stand together and have the key before the first dot in common."""
    found = {}
    for path in sorted((folder / "packed").glob("*.tar")):
        with tarfile.open(path) as shard:
            names = shard.getnames()
            assert [name.partition(".")[0] for name in names[::3]] == [name.partition(".")[0] for name in names[2::3]]
            for name in names[::3]:
                key = name.partition(".")[0]
                image, label, about = (
                    shard.extractfile(member).read()  # type: ignore[union-attr]
                    for member in (name, f"{key}.cls", f"{key}.json")
                )
                described = json.loads(about)
                assert int(label) == ["cat", "dög"].index(described["class"])
                found[described["id"]] = image
    files = [path for path in (folder / "zoo").rglob("*.*") if path.name != "broken.png"]
    assert found == {str(path.relative_to(folder / "zoo")): path.read_bytes() for path in files}


def test_opening_reads_neither_shards_nor_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    ordinary = io.open

    def noted(path: Any, *given: Any, **settings: Any) -> Any:
        opened.append(str(path))
        return ordinary(path, *given, **settings)

    monkeypatch.setattr(builtins, "open", noted)
    monkeypatch.setattr(io, "open", noted)
    data = open_data(str(folder / "packed"))
    assert {Path(path).name for path in opened} <= {"index.json", "index.rows"}
    monkeypatch.undo()
    expected = open_data(str(folder / "zoo"))
    assert kind_of(str(folder / "packed"), TableColumns()) == "small images"
    assert (data.classes, data.white, data.image_size) == (expected.classes, expected.white, expected.image_size)
    assert [sample_id for sample_id, _ in data.unreadable] == [sample_id for sample_id, _ in expected.unreadable]
    for name, samples in expected.splits.items():
        own = data.splits[name]
        assert own.ids == samples.ids
        assert torch.equal(own.labels, samples.labels)
        index_B = torch.arange(len(samples))
        assert torch.equal(own.inputs.read(index_B), samples.inputs.read(index_B))


def test_a_run_on_shards_has_the_bits_of_one_on_the_files(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SELFADAPT_HOME", str(tmp_path / "home"))
    outcomes = []
    for source in ("zoo", "packed"):
        settings = ("--model", "mlp", "--epochs", "2", "--noise", "symmetric:0.4", "--out", source)
        run_json("train", str(folder / source), *settings, folder=tmp_path)
        audit = run_json("audit", source, folder=tmp_path)
        found = outcome(tmp_path / source)
        del found["samples"], found["labels"]  # they name the files
        outcomes.append({**found, "suspects": audit["suspects"]})
    assert outcomes[0] == outcomes[1]
    labels = (tmp_path / "packed" / "labels.csv").read_text()
    path = Path(next(cell for cell in labels.split(",") if ".tar/" in cell))
    assert decode(path, channels=3, resize=None, white=4095.0).shape[0] == 3


def test_damage_is_reported(folder: Path, tmp_path: Path) -> None:
    import shutil

    def damaged(name: str) -> Path:
        shutil.copytree(folder / "packed", tmp_path / name)
        return tmp_path / name

    shard = next(damaged("cut").glob("train*.tar"))
    shard.write_bytes(shard.read_bytes()[:-1000])
    rows = damaged("rows") / "index.rows"
    rows.write_bytes(rows.read_bytes()[:-5])
    (damaged("names") / "index.json").write_text("{}")
    listed = damaged("listed") / "index.json"
    listed.write_text(json.dumps({**json.loads(listed.read_text()), "shards": []}))
    pickled = damaged("pickled") / "index.rows"
    with open(pickled, "wb") as file:
        np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    for name, expected in (
        ("cut", "missing or incomplete"),
        *((n, "damaged") for n in ("rows", "names", "listed", "pickled")),
    ):
        result = run("train", name, "--model", "mlp", "--out", "run", folder=tmp_path)
        assert (result.returncode, result.stderr.count("\n")) == (2, 1), result.stderr
        assert expected in result.stderr
    with pytest.raises(UnreadableImage, match="not in the index"):
        decode(next((folder / "packed").glob("*.tar")) / "000099999.png", channels=3, resize=None)
    with pytest.raises(OSError, match="not in the index"):
        image_bytes(next((folder / "packed").glob("*.tar")) / "x.png")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("zoo", "packed"), "exists already"),
        (("nothing", "new"), "cannot be packed"),
        (("digits", "new"), "cannot be packed"),
        (("zoo/val/cat", "new"), "no class folders"),
    ],
)
def test_mistakes_of_pack(folder: Path, arguments: tuple[str, str], expected: str) -> None:
    result = run("data", "pack", *arguments, folder=folder)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1), result.stderr
    assert expected in result.stderr
    assert not (folder / "new").exists()
