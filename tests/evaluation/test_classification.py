"""Metrics ignore unreadable files."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import balanced_accuracy_score
from torch import Tensor, nn

from distributed.group import in_processes
from selfadapt.data.images.storage import ImageFiles
from selfadapt.evaluation import classification
from selfadapt.evaluation.classification import UNKNOWN, accuracy, balanced_accuracy, outputs, predicted_classes

CPU = torch.device("cpu")


class _Mean(nn.Module):
    """Says how bright an image is, and how dark."""

    def forward(self, images: Tensor) -> Tensor:
        bright_B = images.mean((1, 2, 3))
        return torch.stack([bright_B, 1 - bright_B], 1)


def _files(folder: Path) -> ImageFiles:
    """Twelve grey images of shades 0, 20, 40, …; the first seven are cut short behind their head."""
    paths = []
    folder.mkdir(exist_ok=True)
    for number in range(12):
        path = folder / f"{number}.png"
        noise = np.random.default_rng(number).integers(0, 2, (40, 40), np.uint8)
        Image.fromarray(np.full((40, 40), 20 * number, np.uint8) + noise).save(path)
        if number < 7:
            path.write_bytes(path.read_bytes()[:80])
        paths.append(path)
    return ImageFiles(paths, (1, 40, 40))


def test_a_class_that_is_unknown_is_neither_right_nor_wrong() -> None:
    nan = float("nan")
    said = torch.tensor([[nan, nan], [0.1, 0.9], [0.8, 0.2], [nan, nan]])
    predicted = predicted_classes(said)
    assert predicted.tolist() == [UNKNOWN, 1, 0, UNKNOWN]
    assert accuracy(predicted, torch.tensor([0, 1, 1, 0])) == 0.5
    assert accuracy(predicted[[0, 3]], torch.tensor([0, 0])) is None
    assert accuracy(torch.tensor([], dtype=torch.int64), torch.tensor([], dtype=torch.int64)) is None


def test_broken_files_are_unknown_and_noted(tmp_path: Path) -> None:
    files = _files(tmp_path)
    said = outputs(_Mean(), files, CPU, batch_size=5)
    assert predicted_classes(said).tolist() == [UNKNOWN] * 7 + [0] * 5
    assert [path.name for path in files.broken] == [f"{number}.png" for number in range(7)]
    assert outputs(_Mean(), files.take(torch.arange(3)), CPU).isnan().all(), "nothing at all is known"


def test_balanced_accuracy_is_scikit_learns() -> None:
    generator = np.random.default_rng(0)
    labels, predicted = generator.choice([0, 1, 4], 200, p=[0.9, 0.08, 0.02]), generator.integers(0, 5, 200)
    expected = balanced_accuracy_score(labels, predicted)
    found = balanced_accuracy(torch.from_numpy(predicted), torch.from_numpy(labels))
    assert found == pytest.approx(expected)
    unknown_N = torch.full((3,), UNKNOWN)
    assert balanced_accuracy(unknown_N, torch.zeros(3, dtype=torch.int64)) is None


def _exchange_in_blocks(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classification, "_EXCHANGED", 7)
        torch.save(outputs(_Mean(), _files(folder / str(os.getpid())), CPU, batch_size=2), folder / f"{os.getpid()}.pt")


@pytest.mark.distributed
def test_processes_exchange_outputs_in_blocks(tmp_path: Path) -> None:
    in_processes(2, _exchange_in_blocks, tmp_path)
    expected = outputs(_Mean(), _files(tmp_path / "one"), CPU, batch_size=2)
    found = [torch.load(path) for path in tmp_path.glob("*.pt")]
    assert len(found) == 2
    for own in found:
        assert torch.equal(own.nan_to_num(-1), expected.nan_to_num(-1))
