"""Frame -> report -> corrected frame: the index, the types and all other columns stay."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import make_blobs
from torchvision.datasets import FakeData
from torchvision.transforms.v2.functional import pil_to_tensor

import selfadapt
from selfadapt import SelfAdaptiveClassifier, find_label_errors
from selfadapt.core.errors import UserError
from selfadapt.data.sources.user_objects import store

pandas = pytest.importorskip("pandas")

COUNT, WRONG = 300, slice(0, 300, 10)


@pytest.fixture(scope="module")
def flowers() -> tuple[Any, Any]:
    """A frame with an index of its own and a categorical label, one in ten wrong; and the frame as it should be."""
    points, codes = make_blobs(COUNT, n_features=4, centers=3, cluster_std=0.5, random_state=0)
    frame = pandas.DataFrame(points, columns=["a", "b", "c", "d"], index=[f"flower {i}" for i in range(COUNT)])
    names = np.array(["setosa", "versicolor", "virginica"])
    frame["species"] = pandas.Categorical(names[codes], categories=[*names, "unused"])
    right = frame.copy()
    frame.iloc[WRONG, 4] = names[(codes[WRONG] + 1 + np.arange(COUNT // 10) % 2) % 3]
    order = np.random.default_rng(0).permutation(COUNT)
    return frame.iloc[order], right.iloc[order]


def _assert_mended(found: Any, flowers: tuple[Any, Any]) -> None:
    given, right = flowers
    pandas.testing.assert_frame_equal(found.drop(columns="species"), given.drop(columns="species"))
    assert found["species"].dtype == given["species"].dtype
    changed = found["species"] != given["species"]
    assert changed.to_numpy().sum() >= 15  # of 30
    assert (found["species"] == right["species"]).to_numpy()[changed.to_numpy()].all()


def test_a_report_goes_back_to_the_frame(flowers: tuple[Any, Any]) -> None:
    frame = flowers[0]
    before = frame.copy()
    report = find_label_errors(frame["species"], features=frame[["a", "b", "c", "d"]])
    assert list(report.ids) == list(frame.index)
    _assert_mended(report.apply_to(frame, "species"), flowers)
    pandas.testing.assert_frame_equal(frame, before)
    in_another_order = report.apply_to(frame.iloc[::-1], "species")
    pandas.testing.assert_frame_equal(in_another_order.iloc[::-1], report.apply_to(frame, "species"))
    part = report.apply_to(frame.iloc[10:40], "species")
    pandas.testing.assert_frame_equal(part, report.apply_to(frame, "species").iloc[10:40])


def test_an_index_that_repeats_a_value_serves_in_order_only(flowers: tuple[Any, Any]) -> None:
    given, right = (frame.set_axis(["same"] * COUNT) for frame in flowers)
    report = find_label_errors(given["species"], features=given[["a", "b", "c", "d"]])
    _assert_mended(report.apply_to(given, "species"), (given, right))
    with pytest.raises(ValueError, match="the index repeats a value"):
        report.apply_to(given.iloc[::-1], "species")


def test_the_estimator_keeps_the_index(flowers: tuple[Any, Any]) -> None:
    frame = flowers[0]
    model = SelfAdaptiveClassifier().fit(frame[["a", "b", "c", "d"]], frame["species"])
    _assert_mended(model.label_errors_.apply_to(frame, "species"), flowers)


def test_a_run_goes_back_to_the_frame(flowers: tuple[Any, Any], tmp_path: Path) -> None:
    frame = flowers[0]
    run = selfadapt.train(frame, out=tmp_path / "run", label_column="species", validation=0)
    assert set(run.labels["id"]) == set(frame.index)
    _assert_mended(run.corrected(frame), flowers)
    assert run.corrected(out=tmp_path / "fixed.csv").read_text().startswith("id,a,b,c,d,species")
    with pytest.raises(ValueError, match="the rows of the table are not those"):
        run.corrected(frame.iloc[::-1])
    again = selfadapt.train(frame, out=tmp_path / "run", label_column="species", validation=0, resume=True)
    assert again.result["test_accuracy"] == run.result["test_accuracy"]


def test_a_run_that_cannot_start_leaves_nothing_behind(flowers: tuple[Any, Any], tmp_path: Path) -> None:
    cases: list[dict[str, Any]] = [{"label_column": "colour"}, {"label_column": "species", "epochz": 3}]
    for settings in cases:
        with pytest.raises(UserError, match=r"colour|epochz"):
            selfadapt.train(flowers[0], out=tmp_path / "run", **settings)
        assert not list(tmp_path.iterdir())


def test_columns_of_categories_are_encoded(flowers: tuple[Any, Any]) -> None:
    frame = flowers[0].assign(site=np.where(flowers[0]["a"] > 0, "north", "south"))
    report = find_label_errors(frame["species"], features=frame.drop(columns="species"))
    assert report.is_error.sum() <= 60


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_missing_numbers_are_encoded_with_and_without_categories(flowers: tuple[Any, Any], package: str) -> None:
    species, frame = flowers[0]["species"], flowers[0].drop(columns="species")
    frame.iloc[::9, 0] = None
    values = frame.astype(object).where(frame.notna(), None).to_dict("list")
    numbers = pytest.importorskip(package).DataFrame(values)
    with_category = frame.assign(always="same")
    reports = [find_label_errors(species, features=own) for own in (frame, numbers, with_category)]
    for report in reports[1:]:
        np.testing.assert_array_equal(report.is_error, reports[0].is_error)


def test_another_table_is_refused(flowers: tuple[Any, Any]) -> None:
    frame = flowers[0]
    report = find_label_errors(frame["species"], features=frame[["a", "b", "c", "d"]])
    with pytest.raises(ValueError, match="no row has an id of this report"):
        report.apply_to(frame.reset_index(drop=True).iloc[:9], "species")
    with pytest.raises(ValueError, match="has no column 'label'"):
        report.apply_to(frame, "label")
    with pytest.raises(ValueError, match="pass the table that the report was made from"):
        report.apply_to(frame.assign(species="setosa"), "species")
    with pytest.raises(ValueError, match="list is not a DataFrame"):
        report.apply_to([1, 2], "species")
    with pytest.raises(UserError, match="the index of the frame repeats a value"):
        store(pandas.concat([frame, frame]), Path())


class Pictures:
    """A torch Dataset of images of several sizes, as Pillow or as tensors have them."""

    classes = ("dark", "bright")

    def __init__(self, as_array: bool) -> None:
        self.as_array = as_array

    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int) -> tuple[Any, int]:
        pixels = np.full((9 if self.as_array else 9 + i, 9, 3), 10 + 200 * (i % 2), np.uint8)
        if self.as_array:
            import torch

            return torch.from_numpy(pixels).permute(2, 0, 1) / 255, i % 2
        return Image.fromarray(pixels), i % 2


@pytest.mark.parametrize("as_array", [False, True])
def test_a_torch_dataset_of_images_is_stored_without_loss(as_array: bool, tmp_path: Path) -> None:
    table = store(Pictures(as_array), tmp_path)
    lines = table.read_text().splitlines()
    assert lines[2] == "1,0000001.png,bright"
    with Image.open(table.parent / "0000001.png") as image:
        assert image.size == ((9, 9) if as_array else (9, 10))
        assert image.getpixel((3, 3)) == (210, 210, 210)


def test_a_torch_dataset_of_vectors_is_stored(tmp_path: Path) -> None:
    import torch
    from torch.utils.data import TensorDataset

    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    with np.load(store(TensorDataset(x, torch.arange(12) % 2), tmp_path)) as found:
        np.testing.assert_array_equal(found["x_train"], x.numpy())
        assert found["y_train"].tolist() == [str(i % 2) for i in range(12)]


def test_what_is_not_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="list is not a kind of data"):
        store([1, 2], tmp_path)
    normalised = FakeData(4, (3, 8, 8), transform=lambda image: pil_to_tensor(image) / 100.0 - 1)
    with pytest.raises(UserError, match="without Normalize"):
        store(normalised, tmp_path)
