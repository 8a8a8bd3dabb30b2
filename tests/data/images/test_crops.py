"""Crops from the picture itself, and the middle at test, against torchvision on the same files."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from scipy.stats import ks_2samp
from torchvision import transforms
from torchvision.transforms import functional

from selfadapt.data.batch import Batch
from selfadapt.data.dataset import Samples
from selfadapt.data.images.augment import augmentation_by_name
from selfadapt.data.images.crops import RandomCrops
from selfadapt.data.images.decode import Box, Frame, UnreadableImage, decode_crops
from selfadapt.data.images.storage import ImageFiles
from selfadapt.data.loader import SampleLoader

CPU = torch.device("cpu")
SIZES = [(61, 40), (40, 83), (50, 50), (200, 31), (90, 70), (33, 64), (47, 45)]  # width and height


def _photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """Something with edges and colours, as smooth as a photo is."""
    noise = np.random.default_rng(seed).integers(0, 256, (height // 8 + 2, width // 8 + 2, 3), np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture
def photos(tmp_path: Path) -> ImageFiles:
    paths = []
    for number, size in enumerate(SIZES):
        paths.append(tmp_path / f"{number}.{'jpg' if number % 2 else 'png'}")
        exif = Image.Exif()
        exif[0x0112] = number + 1  # every way to hold a camera
        _photo(*size, seed=number).save(paths[-1], exif=exif)
    return ImageFiles(paths, (3, 24, 24), Frame.middle(24))


def _upright(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return ImageOps.exif_transpose(image).convert("RGB")


def _by_torchvision(image: Image.Image, box: Box, size: tuple[int, int]) -> torch.Tensor:
    left, top, right, bottom = box
    width, height = size
    cut = functional.resized_crop(image, top, left, bottom - top, right - left, [height, width])
    pixels: torch.Tensor = functional.pil_to_tensor(cut)
    return pixels


def test_crops_are_torchvision_s_to_the_last_bit(photos: ImageFiles) -> None:
    crops = RandomCrops(smallest=0.08, views=2, seed=5, epoch=3)
    for position, path in enumerate(photos.paths):
        image = _upright(path)
        boxes = crops.boxes(position, *image.size)
        assert boxes[0] != boxes[1]
        expected = torch.stack([_by_torchvision(image, box, (24, 24)) for box in boxes])
        assert torch.equal(crops.cut(photos, position), expected)
    grey = replace(photos, shape=(1, 24, 24))
    assert grey.crops(0, lambda width, height: [(3, 4, 20, 17)]).shape == (1, 1, 24, 24)


def test_the_middle_is_torchvision_s_resize_and_centre_crop(photos: ImageFiles) -> None:
    steps = transforms.Compose([transforms.Resize(27), transforms.CenterCrop(24), transforms.PILToTensor()])
    for position, path in enumerate(photos.paths):
        assert torch.equal(photos.decode(position), steps(_upright(path)))
    assert Frame.middle(224).side == 256


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_a_large_jpeg_is_decoded_smaller_and_looks_the_same(orientation: int, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    _photo(1201, 903).save(tmp_path / "large.jpg", exif=exif, quality=95)
    image = _upright(tmp_path / "large.jpg")
    width, height = image.size
    boxes: list[Box] = [(0, 0, width, height), (101, 203, 703, 801), (width - 500, height - 400, width, height)]
    found = decode_crops(tmp_path / "large.jpg", lambda width, height: boxes, (40, 30), channels=3).float()
    expected = torch.stack([_by_torchvision(image, box, (40, 30)) for box in boxes]).float()
    assert not torch.equal(found, expected)  # for it was decoded at a quarter
    assert (found - expected).abs().mean() < 1
    assert (found - expected).abs().max() < 16


def test_boxes_are_drawn_as_torchvision_draws_them() -> None:
    """Area, shape and place have torchvision's distributions; no box leaves the picture."""
    width, height, count = 300, 180, 1500
    crops = RandomCrops(smallest=0.2, views=1, seed=0, epoch=0)
    ours = np.array([crops.boxes(position, width, height)[0] for position in range(count)])
    assert ours.min() >= 0
    assert (ours <= [width, height, width, height]).all()
    torch.manual_seed(0)
    image = torch.empty(3, height, width)
    drawn = [transforms.RandomResizedCrop.get_params(image, [0.2, 1.0], [3 / 4, 4 / 3]) for _ in range(count)]
    theirs = np.array([(left, top, left + wide, top + tall) for top, left, tall, wide in drawn])

    def measures(boxes: np.ndarray) -> list[np.ndarray]:
        wide, tall = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
        return [wide * tall, wide / tall, boxes[:, 0] + wide / 2, boxes[:, 1] + tall / 2]

    for own, other in zip(measures(ours), measures(theirs), strict=True):
        assert ks_2samp(own, other).pvalue > 1e-3


def _samples(photos: ImageFiles) -> Samples:
    labels = torch.arange(len(photos)) % 2
    return Samples(inputs=photos, labels=labels, truth=None, ids=[path.name for path in photos.paths])


def _batches(photos: ImageFiles, name: str, start: int = 0, **how: object) -> list[Batch]:
    loader = SampleLoader(
        _samples(photos),
        batch_size=3,
        seed=1,
        device=CPU,
        augment=augmentation_by_name(name, 24, cropped=True),
        crop_area=0.2,
        **how,  # type: ignore[arg-type]
    )
    return list(loader.epoch(2, start))


def test_workers_and_the_first_step_change_nothing(photos: ImageFiles) -> None:
    expected = _batches(photos, "self-supervised-blur", workers=0, views=2)
    found = _batches(photos, "self-supervised-blur", workers=2, views=2)
    resumed = _batches(photos, "self-supervised-blur", workers=1, views=2, start=1)
    assert len(expected) == 3
    for batch, again in zip([*expected, *expected[1:]], [*found, *resumed], strict=True):
        assert torch.equal(batch.index, again.index)
        for own, other in zip(batch.views, again.views, strict=True):
            assert torch.equal(own, other)
            assert own.shape[1:] == (3, 24, 24)
            assert own.min() >= 0
            assert own.max() <= 1
        assert not torch.equal(*batch.views)


def test_processes_cut_the_same_crops(photos: ImageFiles) -> None:
    """Where nothing else is drawn, the parts of two processes are the batches of one, and the boxes' own pixels."""
    bare = "self-supervised,no-flip,no-jitter,no-grey"
    expected = {int(i): x for batch in _batches(photos, bare) for i, x in zip(batch.index, batch.input, strict=True)}
    parts = [_batches(photos, bare, part=(rank, 2)) for rank in (0, 1)]
    found = {int(i): x for part in parts for batch in part for i, x in zip(batch.index, batch.input, strict=True)}
    assert sorted(found) == sorted(expected) == list(range(len(SIZES)))
    crops = RandomCrops(smallest=0.2, views=1, seed=1, epoch=2)
    for position, pixels in found.items():
        assert torch.equal(pixels, expected[position])
        assert torch.equal((pixels * 255).round().to(torch.uint8), crops.cut(photos, position)[0])


def test_resized_crops_of_pictures_are_mirrored_by_halves(photos: ImageFiles) -> None:
    many = photos.take(torch.zeros(60, dtype=torch.int64))
    crops = RandomCrops(smallest=0.2, views=1, seed=1, epoch=2)
    mirrored = 0
    for batch in _batches(many, "resized-crop", workers=0):
        for position, pixels in zip(batch.index.tolist(), (batch.input * 255).round().to(torch.uint8), strict=True):
            plain = crops.cut(many, position)[0]
            assert torch.equal(pixels, plain) or torch.equal(pixels, plain.flip(2))
            mirrored += not torch.equal(pixels, plain)
    assert 15 <= mirrored <= 45


def test_a_broken_picture_is_left_out(photos: ImageFiles) -> None:
    photos.paths[4].write_bytes(b"no picture")
    with pytest.raises(UnreadableImage):
        photos.crops(4, lambda width, height: [(0, 0, width, height)])
    seen = torch.cat([batch.index for batch in _batches(photos, "resized-crop", workers=1)])
    assert sorted(seen.tolist()) == [0, 1, 2, 3, 5, 6]
    assert list(photos.broken) == [photos.paths[4]]
