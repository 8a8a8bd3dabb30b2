"""Arrays, datasets and label files of a user's own."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from data.tables import write_table
from selfadapt.core.errors import UserError
from selfadapt.core.rng import seeded
from selfadapt.data.dataset import Samples
from selfadapt.data.images.storage import ImageFiles, TensorImages
from selfadapt.data.labels.overrides import apply_labels
from selfadapt.data.sources.catalog import open_data
from selfadapt.data.splits import split_off


def test_arrays_come_with_their_parts_and_names(npz_file: Path) -> None:
    data = open_data(str(npz_file))
    assert data.classes == ("cat", "dog", "emu")
    assert data.validation is not None
    assert data.test is not None
    assert (len(data.train), len(data.validation), len(data.test)) == (60, 15, 30)
    with np.load(npz_file) as file:
        images = data.train.inputs.read(torch.arange(60))
        np.testing.assert_array_equal(images.permute(0, 2, 3, 1).numpy(), file["x_train"])
        assert [data.classes[k] for k in data.train.labels] == list(file["y_train"])
    assert data.train.paths is not None
    assert data.train.paths[5] == "x_train[5]"


def _save(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return str(path)


X = np.random.default_rng(0).integers(0, 256, (20, 4, 4), np.uint8)
Y = np.arange(20) % 2


@pytest.mark.parametrize(("height", "width", "size"), [(32, 32, 16), (28, 28, 24), (20, 31, 12), (8, 8, 8), (9, 8, 20)])
def test_images_in_memory_are_brought_to_a_size_as_files_are(
    height: int, width: int, size: int, tmp_path: Path
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, height, width, 3), dtype=np.uint8)
    found = TensorImages(torch.from_numpy(pixels).permute(0, 3, 1, 2)).resized_to(size)
    side, places = min(height, width), []
    for i, image in enumerate(pixels):
        top, left = (height - side) // 2, (width - side) // 2
        places.append(tmp_path / f"{i}.png")
        Image.fromarray(image[top : top + side, left : left + side]).save(places[-1])
    files = ImageFiles(places, (3, size, size), size)
    expected = files.read(torch.arange(2))
    assert found.values_NCHW.dtype == torch.uint8
    assert (found.values_NCHW.int() - expected.int()).abs().max() <= 1  # Pillow rounds after each of two passes


def test_ids_of_arrays_survive_reordering(tmp_path: Path) -> None:
    order = np.random.default_rng(1).permutation(20)
    first = open_data(_save(tmp_path / "a.npz", x_train=X, y_train=Y)).train
    second = open_data(_save(tmp_path / "b.npz", x_train=X[order], y_train=Y[order])).train
    assert [first.ids[i] for i in order] == list(second.ids)
    twice = open_data(_save(tmp_path / "c.npz", x_train=np.concatenate([X, X]), y_train=np.concatenate([Y, Y]))).train
    assert len(set(twice.ids)) == 40


def test_a_tenth_of_each_class_is_set_aside(tmp_path: Path) -> None:
    data = open_data(_save(tmp_path / "a.npz", x_train=X, y_train=Y))
    split = data.with_validation(0.1, seeded(0, "split"))
    assert split.validation is not None
    assert (len(split.train), len(split.validation)) == (18, 2)
    assert torch.bincount(split.validation.labels).tolist() == [1, 1]
    assert not set(split.train.ids) & set(split.validation.ids)
    again = data.with_validation(0.1, seeded(0, "split"))
    assert again.validation is not None
    assert list(again.validation.ids) == list(split.validation.ids)


BAD_ARRAYS: dict[str, dict[str, Any]] = {
    "it must contain x_train and y_train": {"x_train": X},
    "images must be uint8": {"x_train": X.astype(np.float32), "y_train": Y},
    "shape N×H×W": {"x_train": X[:, 0], "y_train": Y},
    "has 8 channels; the last dimension must be": {"x_train": np.zeros((20, 3, 8, 8), np.uint8), "y_train": Y},
    "x_train is empty": {"x_train": np.zeros((20, 0, 4), np.uint8), "y_train": Y},
    "y_train has shape .19,., but x_train contains 20": {"x_train": X, "y_train": Y[:19]},
    r"y_train\[3\] is -1; labels must not be negative": {"x_train": X, "y_train": np.where(np.arange(20) == 3, -1, Y)},
    "labels must be integers or text": {"x_train": X, "y_train": Y + 0.5},
    r"y_test\[1\] has the label '7', which no": {"x_train": X, "y_train": Y, "x_test": X[:2], "y_test": [0, 7]},
    "contains x_val but not y_val": {"x_train": X, "y_train": Y, "x_val": X},
    "x_test contains images of shape .1, 5, 5.": {
        "x_train": X, "y_train": Y, "x_test": np.zeros((2, 5, 5), np.uint8), "y_test": [0, 1],
    },
    "plain arrays": {"x_train": X, "y_train": np.array([None] * 20, dtype=object)},
}  # fmt: skip


@pytest.mark.parametrize("message", BAD_ARRAYS)
def test_bad_arrays_are_refused(message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        open_data(_save(tmp_path / "bad.npz", **BAD_ARRAYS[message]))


@pytest.mark.parametrize("content", [b"PK\x03\x04 not really", b"", b"\x93NUMPY\x01\x00"])
def test_a_file_that_is_no_archive_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.npz"
    path.write_bytes(content)
    with pytest.raises(UserError, match="cannot be read as an"):
        open_data(str(path))
    np.save(tmp_path / "single.npy", X)
    (tmp_path / "single.npy").rename(path)
    with pytest.raises(UserError, match="it is a single array"):
        open_data(str(path))


@pytest.mark.parametrize(
    ("harm", "message"), [("compressed", "invalid|Error -3"), ("encrypted", "password"), ("pickle", "could run code")]
)
def test_a_damaged_archive_is_refused_in_one_line(harm: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    np.savez_compressed(path, x_train=X, y_train=Y)
    content = bytearray(path.read_bytes())
    if harm == "compressed":
        content[80:90] = bytes(255 for _ in range(10))
    elif harm == "encrypted":
        content[6] |= 1
        content[content.find(b"PK\x01\x02") + 8] |= 1
    else:
        content[:] = pickle.dumps(print)
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"bad.npz cannot be read as an .npz file of plain arrays: .*({message})"):
        open_data(str(path))


def test_too_few_samples_to_split_are_refused() -> None:
    train = open_data("digits").limited(3, None).train
    with pytest.raises(UserError, match="too few to hold out 10% of each class"):
        split_off(train, 0.1, seeded("x"))


def test_labels_from_a_file_make_the_data_s_own_the_truth(tmp_path: Path) -> None:
    data = open_data(_save(tmp_path / "a.npz", x_train=X, y_train=Y))
    np.save(tmp_path / "people.npy", 1 - Y)
    noisy = apply_labels(data, tmp_path / "people.npy")
    assert noisy.train.labels.tolist() == (1 - Y).tolist()
    assert noisy.train.truth is not None
    assert noisy.train.truth.tolist() == Y.tolist()
    write_table(tmp_path / "few.csv", [{"id": data.train.ids[4], "label": "1"}, {"id": "unknown", "label": "1"}])
    with pytest.warns(UserWarning, match="ignored, such as 'unknown'"):
        few = apply_labels(data, tmp_path / "few.csv").train
    assert (few.labels != data.train.labels).nonzero().flatten().tolist() == [4]


def test_bad_label_files_are_refused(tmp_path: Path) -> None:
    data = open_data(_save(tmp_path / "a.npz", x_train=X, y_train=Y))
    np.save(tmp_path / "short.npy", Y[:5])
    np.save(tmp_path / "range.npy", Y + 1)
    np.save(tmp_path / "real.npy", Y + 0.5)
    (tmp_path / "junk.npy").write_bytes(b"junk")
    (tmp_path / "other.txt").write_text("")
    write_table(tmp_path / "columns.csv", [{"name": "a", "label": "1"}])
    write_table(tmp_path / "nobody.csv", [{"id": "a", "label": "1"}])
    write_table(tmp_path / "word.csv", [{"id": data.train.ids[0], "label": "cat"}])
    cases = {
        "short.npy": "the training set has 20 samples",
        "range.npy": "entry 1 has the label '2', which no training sample has",
        "real.npy": "integers or text",
        "junk.npy": "cannot be read",
        "other.txt": r"give a .npy or a .csv file",
        "columns.csv": "columns id and label",
        "nobody.csv": "none of its 1 ids is in the training set, such as 'a'",
        "word.csv": "has the label 'cat', which no training sample has",
        "gone.npy": "there is no file",
    }
    for name, message in cases.items():
        with pytest.raises(UserError, match=message):
            apply_labels(data, tmp_path / name)


def test_label_files_name_classes_as_the_data_do(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 4, 4), np.uint8)
    np.savez(tmp_path / "even.npz", x_train=images, y_train=np.array([0, 2, 4, 0, 2, 4]))
    data = open_data(str(tmp_path / "even.npz"))
    np.save(tmp_path / "labels.npy", np.array([2, 2, 4, 0, 0, 4]))
    assert apply_labels(data, tmp_path / "labels.npy").train.labels.tolist() == [1, 1, 2, 0, 0, 2]
    np.save(tmp_path / "labels.npy", np.array([1, 2, 4, 0, 0, 4]))
    with pytest.raises(UserError, match="'1'"):
        apply_labels(data, tmp_path / "labels.npy")


def test_label_tables_are_taken_to_the_letter(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 4, 4), np.uint8)
    np.savez(tmp_path / "own.npz", x_train=images, y_train=np.array([" cat", "cat", " cat", "dog"]))
    data = open_data(str(tmp_path / "own.npz"))
    first, second, *_ = data.train.ids
    path = tmp_path / "labels.csv"
    path.write_text(f"id,label\n{first},dog\n{second}, cat\n")
    assert [data.classes[k] for k in apply_labels(data, path).train.labels] == ["dog", " cat", " cat", "dog"]
    path.write_text(f"id,label\n {first}, dog\n")
    assert data.classes[int(apply_labels(data, path).train.labels[0])] == "dog"
    path.write_text(f"id,label\n{first},dog\n{first},cat\n")
    with pytest.raises(UserError, match="is 'dog' in row 2 but 'cat' in row 3"):
        apply_labels(data, path)
    path.write_text(f"id,label\n{first},dog\nnobody,dog\n")
    with pytest.warns(UserWarning, match="1 ids are not in the training set"):
        apply_labels(data, path)


def test_a_share_of_each_class_takes_whole_groups_and_every_class() -> None:
    labels = torch.tensor([0] * 20 + [1] * 3)
    inputs = TensorImages(torch.zeros(23, 1, 2, 2, dtype=torch.uint8))
    ids = [str(i) for i in range(23)]
    samples = Samples(inputs=inputs, labels=labels, truth=None, ids=ids, groups=[*ids[:20], "one", "one", "one"])
    _, few = split_off(samples, 0.5, seeded("few"), fewest=1)
    assert torch.bincount(few.labels).tolist() == [10, 3]
    _, validation = split_off(samples, 0.5, seeded("few"))
    assert torch.bincount(validation.labels, minlength=2).tolist() == [10, 0], "a class is not held out as a whole"
