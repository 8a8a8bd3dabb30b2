"""The two pipelines: the same batches from memory and from files, whatever the number of workers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from selfadapt.core.errors import TrainingError
from selfadapt.data.batch import Batch
from selfadapt.data.dataset import Data, Samples
from selfadapt.data.images.augment import augmentation_by_name
from selfadapt.data.images.decoded_cache import cache_decoded
from selfadapt.data.images.storage import ImageFiles, TensorImages
from selfadapt.data.input_statistics import channel_statistics
from selfadapt.data.labels.image_noise import CorruptedImages
from selfadapt.data.labels.noise import Noise, corrupt
from selfadapt.data.loader import SampleLoader
from selfadapt.data.sources.catalog import open_data

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
    augment = augmentation_by_name("crop-flip", 16)
    loader = SampleLoader(samples, batch_size=8, seed=1, device=CPU, augment=augment, workers=workers)
    return list(loader.epoch(2, start))


def _same(first: list[Batch], second: list[Batch]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(a.input, b.input) and torch.equal(a.label, b.label) and torch.equal(a.index, b.index)
        for a, b in zip(first, second, strict=True)
    )


def test_workers_and_memory_give_the_same_batches(files: Data) -> None:
    assert isinstance(files.train.inputs, ImageFiles)
    decoded = cache_decoded(files)
    expected = _batches(decoded.train)
    assert len(expected) == 4
    for workers in (0, 1, 2):
        assert _same(_batches(files.train, workers), expected)
    assert _same(_batches(files.train, 2, start=3), expected[3:])


@pytest.mark.parametrize("processes", [1, 2])
def test_all_samples_are_read_as_they_are(processes: int) -> None:
    images = torch.randint(0, 256, (600, 1, 4, 4), dtype=torch.uint8)
    samples = Samples(
        inputs=TensorImages(images), labels=torch.arange(600) % 7, truth=None, ids=list(map(str, range(600)))
    )
    augment = augmentation_by_name("crop-flip", 4)
    loaders = [
        SampleLoader(samples, batch_size=8, seed=1, device=CPU, augment=augment, part=(rank, processes))
        for rank in range(processes)
    ]
    batches = [list(loader.plain()) for loader in loaders]
    assert all(batches)
    index = torch.cat([batch.index for own in batches for batch in own])
    assert torch.equal(index.sort().values, torch.arange(600))
    assert torch.equal(torch.cat([batch.label for own in batches for batch in own]), index % 7)
    torch.testing.assert_close(
        torch.cat([batch.input for own in batches for batch in own]), images[index].float() / 255
    )


def test_a_file_that_breaks_meanwhile_is_left_out_of_its_batch(files: Data) -> None:
    images = files.train.inputs
    assert isinstance(images, ImageFiles)
    images.paths[7].write_bytes(b"gone bad")
    loader = SampleLoader(files.train, batch_size=8, seed=1, device=CPU, workers=1)
    seen = torch.cat([batch.index for batch in loader.epoch(0)])
    assert sorted(seen.tolist()) == [i for i in range(30) if i != 7]
    assert list(files.broken) == [files.train.ids[7]]


def test_data_that_are_gone_stop_the_training(files: Data) -> None:
    images = files.train.inputs
    assert isinstance(images, ImageFiles)
    for path in images.paths:
        path.unlink()
    loader = SampleLoader(files.train, batch_size=8, seed=1, device=CPU, workers=0)
    with pytest.raises(
        TrainingError, match=r"none of the 8 images of a batch can be read, such as .*check that the files still exist"
    ):
        next(loader.epoch(0))


def test_micro_batches_of_a_batch_are_the_batch() -> None:
    batch = Batch(torch.arange(7.0), torch.arange(7), torch.arange(7))
    assert [len(part) for part in batch.split(3)] == [3, 2, 2]
    assert torch.equal(torch.cat([part.label for part in batch.split(3)]), batch.label)
    assert len(batch.split(20)) == 7


def test_reading_leaves_the_global_generator_alone(files: Data) -> None:
    """Dropout draws from it: a run that is resumed within an epoch reads once more than one that is not."""
    before = torch.get_rng_state()
    for workers in (0, 1):
        _batches(files.train, workers)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", ["gaussian", "random-pixels", "shuffled-pixels"])
def test_corrupted_files_are_decoded_by_workers_and_may_break(kind: str, files: Data) -> None:
    """They are what the decoded copy gives, on the statistics of the same images."""
    expected = corrupt(cache_decoded(files), Noise(kind=kind, rate=0.5), 3).train
    streamed = corrupt(files, Noise(kind=kind, rate=0.5), 3).train
    assert isinstance(streamed.inputs, CorruptedImages)
    for workers in (0, 2):
        assert _same(_batches(streamed, workers), _batches(expected))
    streamed.inputs.files.paths[7].write_bytes(b"gone bad")
    seen = torch.cat([batch.index for batch in _batches(streamed, 2)])
    assert sorted(seen.tolist()) == [i for i in range(30) if i != 7]
    assert list(streamed.broken) == [files.train.ids[7]]
    assert len(streamed.take(torch.arange(7)).broken) == 0
    assert list(streamed.take(torch.arange(5, 9)).broken) == [files.train.ids[7]]


def test_statistics_and_instance_noise_do_without_broken_files(files: Data) -> None:
    images = files.train.inputs
    assert isinstance(images, ImageFiles)
    images.paths[7].write_bytes(b"gone bad")
    fine = files.train.take(torch.tensor([i for i in range(30) if i != 7])).inputs
    pixels = fine.read(torch.arange(29)).numpy() / 255
    mean, std = channel_statistics(images)
    np.testing.assert_allclose(mean, pixels.mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(std, pixels.std((0, 2, 3)), rtol=1e-6)
    noisy = corrupt(files, Noise(kind="instance", rate=0.5), 3).train
    assert noisy.labels[7] == files.train.labels[7]
    assert 5 < int((noisy.labels != files.train.labels).sum()) < 25
    assert list(noisy.broken) == [files.train.ids[7]]


def test_images_of_the_first_epochs_are_small(files: Data) -> None:
    decoded = cache_decoded(files)
    loader = SampleLoader(
        decoded.train, batch_size=8, seed=1, device=CPU, views=2, size_in=lambda epoch: 12 if epoch < 2 else None
    )
    sizes = [{tuple(view.shape[2:]) for batch in loader.epoch(epoch) for view in batch.views} for epoch in range(3)]
    assert sizes == [{(12, 12)}, {(12, 12)}, {(16, 16)}]
