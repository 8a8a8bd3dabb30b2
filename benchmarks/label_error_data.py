"""The features that benchmarks.label_errors_features reads, in one folder.

    python -m benchmarks.label_error_data --out FOLDER --photos FOLDER --fortunes /usr/share/games/fortunes

plants        the photos, at 224 pixels
cifar10       the first 5,000 training images, at 112 pixels
cifar10_test  all test images, at 112 pixels
text          Debian's packages fortunes and fortunes-min: the first 200 texts of each file with at least 100

Images are encoded by EfficientNet-Lite0 (`selfadapt embed`), texts by the sentence model of text columns. Existing
files are kept.

Shapes: N samples, D features.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.grid import program
from selfadapt.data.dataset import Samples
from selfadapt.data.sources.catalog import get_data
from selfadapt.data.text.sentence_model import WIDTH, SentenceEncoder

_CIFAR10 = 5000
_PIXELS = "112"
_LEAST_TEXTS, _MOST_TEXTS = 100, 200  # of a class
_BATCH = 64


def embed_images(samples: Samples, out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder) / "images.npz"
        values = samples.inputs.read(torch.arange(len(samples)))
        np.savez(images, x_train=values.permute(0, 2, 3, 1).numpy(), y_train=samples.labels.numpy())
        program("embed", images, "--image-size", _PIXELS, "--out", out)


def fortunes(folder: Path) -> tuple[list[str], list[int]]:
    """The texts and their classes. Entries of a file are separated by a line with a percent sign."""
    texts: list[str] = []
    labels: list[int] = []
    for path in sorted(folder.iterdir()):
        if path.suffix or not path.is_file() or path.is_symlink():
            continue
        entries = [entry.strip() for entry in path.read_text(encoding="utf-8", errors="replace").split("\n%\n")]
        entries = [entry for entry in entries if entry][:_MOST_TEXTS]
        if len(entries) >= _LEAST_TEXTS:
            labels += [labels[-1] + 1 if labels else 0] * len(entries)
            texts += entries
    return texts, labels


def encode(texts: Sequence[str]) -> Tensor:
    encoder, rows_ND = SentenceEncoder(), torch.empty(len(texts), WIDTH)
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    for first in range(0, len(order), _BATCH):
        batch = order[first : first + _BATCH]
        rows_ND[batch] = encoder.encode([texts[i] for i in batch])
    return rows_ND


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--fortunes", type=Path)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    plants, text = chosen.out / "plants.npz", chosen.out / "text.npz"
    if chosen.photos and not plants.exists():
        program("embed", chosen.photos, "--out", plants)
    if chosen.fortunes and not text.exists():
        texts, labels = fortunes(chosen.fortunes)
        np.savez(text, x_train=encode(texts).numpy(), y_train=np.array(labels))
    names = {name: chosen.out / f"{name}.npz" for name in ("cifar10", "cifar10_test")}
    if not all(path.exists() for path in names.values()):
        data = get_data("cifar10")[1]
        assert data.test is not None
        for name, samples in {"cifar10": data.train.first(_CIFAR10), "cifar10_test": data.test}.items():
            if not names[name].exists():
                embed_images(samples, names[name])


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
