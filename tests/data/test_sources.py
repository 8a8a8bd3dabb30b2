"""Digits and arrays: what is read, and what is refused with a clear word."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from selfadapt.data.samples import channel_statistics, split_off
from selfadapt.data.seeds import seeded
from selfadapt.data.sources import open_data
from selfadapt.errors import UserError


def test_digits_are_scikit_learn_s_in_three_parts() -> None:
    data = open_data("digits")
    assert data.validation is not None
    assert data.test is not None
    parts = [data.train, data.validation, data.test]
    assert sum(len(part) for part in parts) == 1797
    assert len({sample_id for part in parts for sample_id in part.ids}) == 1797
    bunch = load_digits()
    for part in parts:
        assert torch.bincount(part.labels, minlength=10).min() > 0
        for i in (0, len(part) - 1):
            source = int(part.ids[i].split("/")[1])
            assert int(part.labels[i]) == bunch.target[source]
            np.testing.assert_allclose(part.images[i, 0].numpy() / 255, bunch.images[source] / 16, atol=0.002)


def test_digits_are_the_same_each_time() -> None:
    assert open_data("digits").fingerprint == open_data("digits").fingerprint


def test_limits_keep_the_first_samples() -> None:
    whole, limited = open_data("digits"), open_data("digits").limited(50, 20)
    assert limited.test is not None
    assert (len(limited.train), len(limited.test)) == (50, 20)
    assert list(limited.train.ids) == list(whole.train.ids[:50])
    assert limited.fingerprint != whole.fingerprint


def test_arrays_come_with_their_parts_and_names(npz_file: Path) -> None:
    data = open_data(str(npz_file))
    assert data.classes == ("cat", "dog", "emu")
    assert data.validation is not None
    assert data.test is not None
    assert (len(data.train), len(data.validation), len(data.test)) == (60, 15, 30)
    with np.load(npz_file) as file:
        np.testing.assert_array_equal(data.train.images.permute(0, 2, 3, 1).numpy(), file["x_train"])
        assert [data.classes[k] for k in data.train.labels] == list(file["y_train"])


def _save(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return str(path)


X, Y = np.zeros((20, 4, 4), np.uint8), np.arange(20) % 2


def test_arrays_without_validation_give_up_a_tenth_of_each_class(tmp_path: Path) -> None:
    data = open_data(_save(tmp_path / "a.npz", x_train=X, y_train=Y))
    assert data.validation is not None
    assert data.test is None
    assert (len(data.train), len(data.validation)) == (18, 2)
    assert torch.bincount(data.validation.labels).tolist() == [1, 1]
    assert not set(data.train.ids) & set(data.validation.ids)


def test_numbers_as_labels_count_to_the_largest(tmp_path: Path) -> None:
    data = open_data(_save(tmp_path / "a.npz", x_train=X, y_train=Y * 2))
    assert data.classes == ("0", "1", "2")


BAD_ARRAYS: dict[str, dict[str, Any]] = {
    "it must hold x_train and y_train": {"x_train": X},
    "images must be uint8": {"x_train": X.astype(np.float32), "y_train": Y},
    "shape N×H×W": {"x_train": X[:, 0], "y_train": Y},
    "y_train has shape .19,., but x_train holds 20": {"x_train": X, "y_train": Y[:19]},
    r"y_train\[3\] is -1; labels count from 0": {"x_train": X, "y_train": np.where(np.arange(20) == 3, -1, Y)},
    "at least two are needed": {"x_train": X, "y_train": Y * 0},
    "labels must be whole numbers or words": {"x_train": X, "y_train": Y + 0.5},
    r"y_test\[1\] is '7', a label that y_train lacks": {"x_train": X, "y_train": Y, "x_test": X[:2], "y_test": [0, 7]},
    "holds x_val but no y_val": {"x_train": X, "y_train": Y, "x_val": X},
    "x_test holds images of C×H×W .1, 5, 5.": {
        "x_train": X,
        "y_train": Y,
        "x_test": np.zeros((2, 5, 5), np.uint8),
        "y_test": [0, 1],
    },
    "plain arrays": {"x_train": X, "y_train": np.array([None] * 20, dtype=object)},
}


@pytest.mark.parametrize("message", BAD_ARRAYS)
def test_bad_arrays_are_refused(message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        open_data(_save(tmp_path / "bad.npz", **BAD_ARRAYS[message]))


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.npz"
    path.write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(UserError, match="cannot be read as an"):
        open_data(str(path))


@pytest.mark.parametrize(("source", "message"), [("nowhere.npz", "no file nowhere.npz"), ("dgits", "no such file")])
def test_a_missing_source_is_refused(source: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        open_data(source)


def test_too_few_samples_to_split_are_refused() -> None:
    train = open_data("digits").limited(3, None).train
    with pytest.raises(UserError, match="too few to set 10% of each class aside"):
        split_off(train, 0.1, seeded("x"))


def test_channel_statistics_equal_numpy() -> None:
    images = torch.randint(0, 256, (5000, 3, 4, 5), dtype=torch.uint8)
    mean, std = channel_statistics(images)
    values = images.double().numpy() / 255
    np.testing.assert_allclose(mean.numpy(), values.mean((0, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(std.numpy(), values.std((0, 2, 3)), rtol=1e-5)
