"""Frozen features: equal to those of the plain network, and cached by content."""

import multiprocessing
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_images
from timm.data import create_transform, resolve_data_config

from selfadapt.core.errors import UserError
from selfadapt.data.cache_usage import cache_entries, remove_entries
from selfadapt.data.images.decode import Frame, decode
from selfadapt.data.images.prefetch import read_batches
from selfadapt.data.images.storage import ImageFiles, TensorImages
from selfadapt.models.pretrained.features import features_of
from selfadapt.models.pretrained.timm_models import Pretrained, pretrained


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFADAPT_HOME", str(tmp_path / "home"))


@pytest.fixture
def network() -> Pretrained:
    return pretrained("test_efficientnet", weights="none", size=32)


@pytest.fixture
def photos(tmp_path: Path) -> ImageFiles:
    """40 pictures of many sizes, the last of them grey."""
    generator = np.random.default_rng(0)
    paths = []
    for i in range(40):
        coarse = generator.integers(0, 256, (4, 5, 3), np.uint8)
        picture = Image.fromarray(coarse).resize((40 + i, 70 - i), Image.Resampling.BICUBIC)
        paths.append(tmp_path / "photos" / f"{i}.png")
        paths[-1].parent.mkdir(exist_ok=True)
        (picture.convert("L") if i == 39 else picture).save(paths[-1])
    return ImageFiles(paths, (3, 1, 1))


def _plain(images: ImageFiles, network: Pretrained) -> torch.Tensor:
    """What timm itself makes of the files."""
    theirs = timm.create_model("test_efficientnet", num_classes=0).eval()
    theirs.load_state_dict({k.removeprefix("backbone.network."): v for k, v in network.backbone.state_dict().items()
                            if k.startswith("backbone.network.")})  # fmt: skip
    config = {**resolve_data_config(model=theirs), "input_size": (3, 32, 32)}
    transform = create_transform(**config)
    with torch.no_grad():
        return torch.cat([theirs(transform(Image.open(p).convert("RGB"))[None]) for p in images.paths])


@pytest.mark.parametrize("workers", [0, 2])
def test_features_are_timm_s(workers: int, photos: ImageFiles, network: Pretrained) -> None:
    found = features_of(photos, network, workers=workers)
    expected = _plain(photos, network)
    torch.testing.assert_close(found.values_NF, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert (found.taken, list(found.broken)) == (40, [])


def test_a_second_look_takes_nothing_wherever_the_files_are(
    photos: ImageFiles, network: Pretrained, tmp_path: Path
) -> None:
    first = features_of(photos, network)
    shutil.copytree(tmp_path / "photos", tmp_path / "copy")
    paths = [tmp_path / "copy" / path.name for path in reversed(photos.paths)]
    paths += [Path(shutil.copy(paths[3], tmp_path / "copy" / "again.png")), tmp_path / "copy" / "new.png"]
    Image.new("RGB", (50, 40), "red").save(paths[-1])
    seen: list[tuple[int, int]] = []
    second = features_of(
        ImageFiles(paths, (3, 1, 1)), network, on_progress=lambda done, total: seen.append((done, total))
    )
    assert second.taken == 1
    torch.testing.assert_close(second.values_NF[:40], first.values_NF.flip(0), rtol=0, atol=0)
    assert torch.equal(second.values_NF[40], second.values_NF[3])
    assert (seen[0], seen[-1]) == ((41, 42), (42, 42))
    other = pretrained("test_efficientnet", weights="none", size=32)  # of other random weights
    assert features_of(photos, other).taken == 40
    assert features_of(photos, network, keep=False).taken == 40


def test_another_white_gives_other_features(network: Pretrained, tmp_path: Path) -> None:
    Image.fromarray(np.arange(1600, dtype=np.uint16).reshape(40, 40)).save(tmp_path / "deep.png")
    dark, bright = (
        features_of(ImageFiles([tmp_path / "deep.png"], (3, 1, 1), white=w), network) for w in (65535, 4095)
    )
    assert (dark.taken, bright.taken) == (1, 1)
    assert not torch.allclose(dark.values_NF, bright.values_NF)


def test_broken_files_give_nan_and_are_listed(photos: ImageFiles, network: Pretrained, tmp_path: Path) -> None:
    content = photos.paths[2].read_bytes()
    photos.paths[2].write_bytes(content[: len(content) // 2])
    photos.paths[5].write_text("no picture")
    photos.paths[7].unlink()
    for _ in range(2):
        found = features_of(photos, network)
        assert [position for position, _ in found.broken] == [2, 5, 7]
        assert found.values_NF.isnan().all(1).nonzero().flatten().tolist() == [2, 5, 7]
    assert found.taken == 0  # the others were found


class _Stop(Exception):
    pass


def test_after_a_stop_the_rest_is_taken(photos: ImageFiles, network: Pretrained) -> None:
    def stop(done: int, total: int) -> None:
        if done >= 0.8 * total:
            raise _Stop

    with pytest.raises(_Stop):
        features_of(photos, network, workers=0, on_progress=stop)
    assert features_of(photos, network).taken == 8


def test_workers_leave_a_ctrl_c_to_the_program(
    photos: ImageFiles, network: Pretrained, capfd: pytest.CaptureFixture[str]
) -> None:
    """It reaches every process of a terminal; a worker that answers it would die with a page of errors."""

    def stop(number: int, frame: object) -> None:
        raise _Stop

    def press(done: int, total: int) -> None:
        for worker in multiprocessing.active_children() if done >= 8 else ():  # both have begun, and given a batch
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGINT)

    before = signal.signal(signal.SIGINT, stop)  # workers are forked with it
    try:
        assert features_of(photos, network, workers=2, on_progress=press).taken == 40
        read: list[int] = []
        square = replace(photos, shape=(3, 32, 32), resize=32)
        for batch in read_batches(square, torch.arange(40).split(4), workers=2):
            read += batch.index_B.tolist()
            press(len(read), 40)
    finally:
        signal.signal(signal.SIGINT, before)
    assert read == list(range(40))
    assert "Traceback" not in capfd.readouterr().err


def _rows_file(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "home" / "features").glob("*/*.rows")
    return path


def test_what_was_cut_short_or_changed_or_of_other_weights_is_taken_anew(
    photos: ImageFiles, network: Pretrained, tmp_path: Path
) -> None:
    expected = features_of(photos, network).values_NF
    path = _rows_file(tmp_path)
    whole = path.read_bytes()
    record = 16 + 4 * network.backbone.num_features + 4
    path.write_bytes(whole[: len(whole) - record - 10])  # a record and a bit of the next are lost
    again = features_of(photos, network)
    assert again.taken == 2
    for extra in path.parent.glob("*.rows"):
        extra.unlink()
    changed = bytearray(whole)
    changed[-30] ^= 1
    path.write_bytes(changed)
    with pytest.warns(UserWarning, match="1 rows in .* are damaged"):
        again = features_of(photos, network)
    assert again.taken == 1
    torch.testing.assert_close(again.values_NF, expected)  # batches of another size may differ in their last bits
    for extra in path.parent.glob("*.rows"):
        extra.unlink()
    other = pretrained("test_efficientnet", weights="none", size=32)
    features_of(photos, other)
    foreign = _rows_file(tmp_path)
    shutil.move(foreign, path.parent / foreign.name)
    with pytest.warns(UserWarning, match="contains rows of another key"):
        again = features_of(photos, network)
    assert again.taken == 40
    torch.testing.assert_close(again.values_NF, expected)  # batches of another size may differ in their last bits


def test_arrays_are_brought_to_the_network_s_size(network: Pretrained, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 4, 5, 3), np.uint8)
    images = np.stack([np.asarray(Image.fromarray(p).resize((50, 40), Image.Resampling.BICUBIC)) for p in pixels])
    paths = [tmp_path / f"{i}.png" for i in range(6)]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image).save(path)
    array = TensorImages(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()))
    found = features_of(array, network)
    as_files = features_of(ImageFiles(paths, (3, 1, 1)), network)
    scale = float(as_files.values_NF.abs().max())
    # torch's resampling and Pillow's round differently
    torch.testing.assert_close(found.values_NF, as_files.values_NF, rtol=0.02, atol=0.02 * scale)
    assert features_of(array, network).taken == 0
    with pytest.raises(UserError, match=r"have 1 colour channel, but test_efficientnet takes 3; .*--weights none"):
        features_of(TensorImages(array.values_NCHW[:, :1]), network)


def test_the_cache_has_a_limit_and_can_be_emptied(
    photos: ImageFiles, network: Pretrained, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = photos.take(torch.arange(20)), photos.take(torch.arange(20, 40))
    features_of(first, network)
    features_of(second, network)
    (entry,) = cache_entries()
    assert entry.kind == "features"
    assert "test_efficientnet" in entry.description
    features_of(first, network)  # used last, so the other part goes first
    monkeypatch.setattr("selfadapt.data.row_cache.MOST_BYTES", entry.bytes * 3 // 4)
    features_of(first.take(torch.arange(1)), network)
    assert features_of(first, network).taken == 0
    assert features_of(second, network).taken == 20
    freed = sum(found.bytes for found in cache_entries())
    assert remove_entries(cache_entries()) == freed > 0
    assert cache_entries() == []
    assert features_of(first, network).taken == 20


def test_where_nothing_can_be_kept_features_come_all_the_same(
    photos: ImageFiles, network: Pretrained, tmp_path: Path
) -> None:
    (tmp_path / "home").write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="cannot be cached"):
        assert not features_of(photos, network).values_NF.isnan().any()


@pytest.mark.parametrize("turned", range(1, 9))
def test_a_jpeg_decoded_at_reduced_scale_shows_the_same(turned: int, tmp_path: Path) -> None:
    original = Image.fromarray(load_sample_images().images[0])
    large = original.resize((777, 517), Image.Resampling.BICUBIC)  # an eighth of it is no whole number
    exif = Image.Exif()
    exif[0x0112] = turned
    large.save(tmp_path / "large.jpg", quality=95, exif=exif)
    ImageOps.exif_transpose(Image.open(tmp_path / "large.jpg")).save(tmp_path / "large.png")
    for size in (24, 64):
        frame = Frame(size=size, interpolation="bicubic", crop=0.875)
        reduced, whole = (decode(tmp_path / f"large.{kind}", channels=3, resize=frame) for kind in ("jpg", "png"))
        assert reduced.shape == whole.shape == (3, size, size)
        assert (reduced.float() - whole.float()).abs().mean() < 1.5  # of 255; a shift by a pixel gives 8 and more
