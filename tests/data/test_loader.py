"""The two pipelines: the same batches from memory and from files, whatever the number of workers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from selfadapt.data.augment import named_augment
from selfadapt.data.decoded import keep_decoded
from selfadapt.data.images import ImageFiles
from selfadapt.data.loader import Batch, SampleLoader
from selfadapt.data.samples import Data, Samples
from selfadapt.data.sources import open_data
from selfadapt.errors import TrainingError

CPU = torch.device("cpu")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Data:
    monkeypatch.setenv("SELFADAPT_HOME", str(tmp_path / "home"))
    generator = np.random.default_rng(0)
    for position in range(30):
        path = tmp_path / "set" / "ab"[position % 2] / f"{position}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (16, 16, 3), np.uint8)).save(path)
    return open_data(str(tmp_path / "set"))


def _batches(samples: Samples, workers: int | None = None, start: int = 0) -> list[Batch]:
    augment = named_augment("crop-flip", 16)
    loader = SampleLoader(samples, batch_size=8, seed=1, device=CPU, augment=augment, workers=workers)
    return list(loader.epoch(2, start))


def _same(first: list[Batch], second: list[Batch]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(a.image, b.image) and torch.equal(a.label, b.label) and torch.equal(a.index, b.index)
        for a, b in zip(first, second, strict=True)
    )


def test_workers_and_memory_give_the_same_batches(files: Data) -> None:
    assert isinstance(files.train.images, ImageFiles)
    decoded = keep_decoded(files)
    expected = _batches(decoded.train)
    assert len(expected) == 4
    for workers in (0, 1, 2):
        assert _same(_batches(files.train, workers), expected)
    assert _same(_batches(files.train, 2, start=3), expected[3:])


def test_a_file_that_breaks_meanwhile_is_left_out_of_its_batch(files: Data) -> None:
    images = files.train.images
    assert isinstance(images, ImageFiles)
    images.paths[7].write_bytes(b"gone bad")
    loader = SampleLoader(files.train, batch_size=8, seed=1, device=CPU, workers=1)
    seen = torch.cat([batch.index for batch in loader.epoch(0)])
    assert sorted(seen.tolist()) == [i for i in range(30) if i != 7]
    assert list(files.broken) == [files.train.ids[7]]


def test_data_that_are_gone_stop_the_training(files: Data) -> None:
    images = files.train.images
    assert isinstance(images, ImageFiles)
    for path in images.paths:
        path.unlink()
    loader = SampleLoader(files.train, batch_size=8, seed=1, device=CPU, workers=0)
    with pytest.raises(
        TrainingError, match=r"no image of a whole batch can be read, such as .*are the data still there"
    ):
        next(loader.epoch(0))


def test_pieces_of_a_batch_are_the_batch() -> None:
    batch = Batch(torch.arange(7.0), torch.arange(7), torch.arange(7))
    assert [len(piece) for piece in batch.split(3)] == [3, 2, 2]
    assert torch.equal(torch.cat([piece.label for piece in batch.split(3)]), batch.label)
    assert len(batch.split(20)) == 7
