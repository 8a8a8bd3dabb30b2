"""datasets -> report -> corrected dataset, and polars: with the packages of requirements-doors.lock."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

import selfadapt
from cli.photographs import KINDS, write_photo
from cli.program import run_json
from selfadapt import find_label_errors
from selfadapt.data.sources.catalog import open_data
from selfadapt.data.sources.write_back import Corrections, write_back
from selfadapt.data.tabular.table_file import TableColumns

pytestmark = pytest.mark.door
TEXT = TableColumns(text="text")


def _photos(count: int, folder: Path) -> Any:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "note": datasets.Value("string"),
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=[*KINDS, "unused"]),
        }
    )
    paths, labels = [], [i % 2 for i in range(count)]
    for i, label in enumerate(labels):
        paths.append(str(folder / f"{i}.jpg"))
        write_photo(folder / f"{i}.jpg", KINDS[label], i)
    columns = {"note": [f"photo {i}" for i in range(count)], "image": paths, "label": labels}
    return datasets.Dataset.from_dict(columns, features=features)


def _bytes(dataset: Any) -> list[bytes]:
    datasets = pytest.importorskip("datasets")
    return [Path(item["path"]).read_bytes() if item["bytes"] is None else item["bytes"]
            for item in dataset.cast_column("image", datasets.Image(decode=False))["image"]]  # fmt: skip


def test_images_come_back_with_their_bytes_features_and_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setenv("SELFADAPT_HOME", str(tmp_path / "home"))
    given = datasets.DatasetDict(train=_photos(6, tmp_path / "a"), test=_photos(4, tmp_path / "b"))
    given.save_to_disk(str(tmp_path / "saved"))
    data = open_data(str(tmp_path / "saved"))
    assert data.test is not None
    assert [data.classes[k] for k in data.train.labels] == [KINDS[i % 2] for i in range(6)]
    wrong, bad = data.train.ids[1], data.test.ids[0]
    corrections = Corrections(labels={wrong: KINDS[0]}, removed={bad})
    write_back(str(tmp_path / "saved"), TableColumns(), corrections, tmp_path / "fixed")
    found = datasets.load_from_disk(str(tmp_path / "fixed"))
    assert found["train"].features == given["train"].features
    assert found["train"].column_names == given["train"].column_names
    assert list(found["train"]["label"]) == [0, 0, 0, 1, 0, 1]
    assert list(found["test"]["note"]) == ["photo 1", "photo 2", "photo 3"]
    assert _bytes(found["train"]) == _bytes(given["train"])
    assert _bytes(found["test"]) == _bytes(given["test"])[1:]


def test_a_run_on_a_saved_dataset_writes_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setenv("SELFADAPT_HOME", str(tmp_path / "home"))
    given = _photos(40, tmp_path / "photos")
    labels = list(given["label"])
    labels[5], labels[12] = 1 - labels[5], 1 - labels[12]
    given = given.remove_columns("label").add_column("label", labels).cast(given.features)
    given.save_to_disk(str(tmp_path / "saved"))
    run_json("train", "saved", "--out", "run", "--image-size", "64", "--validation", "0", folder=tmp_path)
    (tmp_path / "home").rename(tmp_path / "elsewhere")  # what was extracted can be made again
    result = run_json("labels", "run", "--data-out", "fixed", folder=tmp_path)
    found = datasets.load_from_disk(str(tmp_path / "fixed"))
    changed = [i for i, (a, b) in enumerate(zip(labels, found["label"], strict=True)) if a != b]
    assert len(changed) == result["changed"]
    assert set(changed) <= {5, 12}
    assert changed
    assert list(found["note"]) == list(given["note"])
    run = selfadapt.open_run(tmp_path / "run")
    assert list(run.corrected(given)["label"]) == list(found["label"])


def test_text_columns(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    feature = datasets.ClassLabel(names=["good", "bad"])
    texts = [f"this one is {'lovely' if i % 2 == 0 else 'horrible'}, number {i}" for i in range(20)]
    features = datasets.Features({"text": datasets.Value("string"), "label": feature})
    given = datasets.Dataset.from_dict({"text": texts, "label": [i % 2 for i in range(20)]}, features=features)
    given.save_to_disk(str(tmp_path / "saved"))
    data = open_data(str(tmp_path / "saved"), columns=TEXT)
    assert data.train.inputs.shape == (384,)
    write_back(str(tmp_path / "saved"), TEXT, Corrections(labels={data.train.ids[3]: "good"}), tmp_path / "fixed")
    found = datasets.load_from_disk(str(tmp_path / "fixed"))
    assert list(found["label"]) == [0 if i == 3 else i % 2 for i in range(20)]
    assert list(found["text"]) == texts


def test_a_report_on_embeddings_goes_back_to_a_dataset() -> None:
    datasets = pytest.importorskip("datasets")
    points, codes, wrong = _blobs()
    feature = datasets.ClassLabel(names=["x", "y", "z"])
    given = datasets.Dataset.from_dict({"id": list(range(150, 300)), "label": codes.tolist()})
    given = given.cast_column("label", feature)
    report = find_label_errors(given["label"], features=points)
    found = report.apply_to(given, "label")
    changed = [i for i in range(150) if found["label"][i] != given["label"][i]]
    assert changed == np.flatnonzero(report.is_error & (report.confidence >= 0.6)).tolist()
    assert set(changed) & set(wrong)
    assert found.features == given.features
    assert list(found["id"]) == list(given["id"])


def test_a_polars_frame_keeps_its_types(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    points, codes, wrong = _blobs()
    labels = polars.Series("kind", [("x", "y", "z")[k] for k in codes], dtype=polars.Enum(["x", "y", "z"]))
    given = polars.DataFrame(points, schema=["a", "b", "c", "d"]).with_columns(labels)
    report = find_label_errors(given["kind"], features=given[["a", "b", "c", "d"]])
    found = report.apply_to(given, "kind")
    assert found.schema == given.schema
    assert found.drop("kind").equals(given.drop("kind"))
    changed = [i for i in range(150) if found["kind"][i] != given["kind"][i]]
    assert changed == np.flatnonzero(report.is_error & (report.confidence >= 0.6)).tolist()
    assert set(changed) & set(wrong)
    run = selfadapt.train(given, out=tmp_path / "run", label_column="kind", validation=0)
    assert run.corrected(given).schema == given.schema


def _blobs() -> tuple[Any, Any, list[int]]:
    """Points of three classes, their labels, and which of these are wrong."""
    from sklearn.datasets import make_blobs

    points, codes = make_blobs(150, n_features=4, centers=3, random_state=0)
    wrong = [3, 20, 41, 77, 119, 140]
    codes[wrong] = (codes[wrong] + 1) % 3
    return points, codes, wrong


def test_pillow_images_in_memory_are_stored(tmp_path: Path) -> None:
    """A Dataset whose images have no file."""
    datasets = pytest.importorskip("datasets")
    images = [Pillow.new("RGB", (40, 40), (10 * i, 0, 0)) for i in range(6)]
    given = datasets.Dataset.from_dict({"image": images, "label": ["a", "b"] * 3})
    given = given.cast_column("image", datasets.Image())
    given.save_to_disk(str(tmp_path / "saved"))
    assert len(open_data(str(tmp_path / "saved")).train) == 6
