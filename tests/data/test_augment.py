"""Batched augmentation against torchvision, image by image."""

import pytest
import torch
from torchvision.transforms.v2 import functional

from selfadapt.data.augment import crop, named_augment, random_crop, random_flip
from selfadapt.data.seeds import seeded
from selfadapt.errors import UserError

IMAGES = torch.randint(0, 256, (40, 3, 12, 10), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_crop_equals_torchvision() -> None:
    top, left = torch.randint(0, 5, (40,)), torch.randint(0, 4, (40,))
    ours = crop(IMAGES, top, left, 8, 7)
    theirs = [functional.crop(image, int(t), int(x), 8, 7) for image, t, x in zip(IMAGES, top, left, strict=True)]
    assert torch.equal(ours, torch.stack(theirs))


def test_random_crop_cuts_every_window_of_the_padded_image() -> None:
    image = IMAGES[:1].expand(400, -1, -1, -1)
    ours = random_crop(image, 1, seeded("crop"))
    padded = functional.pad(IMAGES[0], [1, 1, 1, 1])
    windows = {functional.crop(padded, top, left, 12, 10).numpy().tobytes() for top in range(3) for left in range(3)}
    assert {one.numpy().tobytes() for one in ours.contiguous()} == windows


def test_random_flip_mirrors_about_half() -> None:
    flipped = random_flip(IMAGES, seeded("flip"))
    mirrored = [torch.equal(new, functional.horizontal_flip(old)) for new, old in zip(flipped, IMAGES, strict=True)]
    kept = [torch.equal(new, old) for new, old in zip(flipped, IMAGES, strict=True)]
    assert all(a != b for a, b in zip(mirrored, kept, strict=True))
    assert 8 <= sum(mirrored) <= 32


def test_an_unknown_name_is_refused() -> None:
    assert named_augment("none", 8) is None
    with pytest.raises(UserError, match="--augment 'twirl' is not known"):
        named_augment("twirl", 8)
