"""Batched augmentation against torchvision, image by image on the same parameters."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms.v2 import functional
from torchvision.transforms.v2.functional import InterpolationMode

from selfadapt.core.errors import UserError
from selfadapt.core.rng import seeded
from selfadapt.data.images import augment, transforms

IMAGES = torch.randint(0, 256, (40, 3, 12, 10), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
FLOATS = IMAGES.float() / 255


def _uniform(low: float, high: float, seed: int = 0) -> Tensor:
    return torch.empty(40).uniform_(low, high, generator=torch.Generator().manual_seed(seed))


def _each(function: object, *parameters: Tensor) -> Tensor:
    assert callable(function)
    columns = zip(*parameters, strict=True)
    return torch.stack([function(image, *map(float, row)) for image, row in zip(FLOATS, columns, strict=True)])


def test_crop_equals_torchvision() -> None:
    top, left = torch.randint(0, 5, (40,)), torch.randint(0, 4, (40,))
    ours = transforms.crop(IMAGES, top, left, 8, 7)
    theirs = [functional.crop(image, int(t), int(x), 8, 7) for image, t, x in zip(IMAGES, top, left, strict=True)]
    assert torch.equal(ours, torch.stack(theirs))


def test_random_crop_cuts_every_window_of_the_padded_image() -> None:
    image = IMAGES[:1].expand(400, -1, -1, -1)
    ours = augment.random_crop(image, 1, seeded("crop"))
    padded = functional.pad(IMAGES[0], [1, 1, 1, 1])
    windows = {functional.crop(padded, top, left, 12, 10).numpy().tobytes() for top in range(3) for left in range(3)}
    assert {one.numpy().tobytes() for one in ours.contiguous()} == windows


def test_random_flip_mirrors_about_half() -> None:
    flipped = augment.random_flip(IMAGES, seeded("flip"))
    pairs = list(zip(flipped, IMAGES, strict=True))
    mirrored = [torch.equal(new, functional.horizontal_flip(old)) for new, old in pairs]
    kept = [torch.equal(new, old) for new, old in pairs]
    assert all(a != b for a, b in zip(mirrored, kept, strict=True))
    assert 8 <= sum(mirrored) <= 32


@pytest.mark.parametrize("size", [(12, 10), (20, 30), (5, 4)])
def test_resized_crop_equals_torchvision(size: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(1)
    tall = torch.randint(1, 13, (40,), generator=generator)
    wide = torch.randint(1, 11, (40,), generator=generator)
    top = (torch.rand(40, generator=generator) * (13 - tall)).long()
    left = (torch.rand(40, generator=generator) * (11 - wide)).long()
    ours = transforms.resized_crop(FLOATS, top, left, tall, wide, size)
    theirs = [
        functional.resized_crop(
            FLOATS[i], int(top[i]), int(left[i]), int(tall[i]), int(wide[i]), list(size), antialias=True
        )
        for i in range(40)
    ]
    torch.testing.assert_close(ours, torch.stack(theirs), atol=1e-5, rtol=0)
    mirrored = torch.arange(40) % 2 == 0
    both = transforms.resized_crop(FLOATS, top, left, tall, wide, size, mirrored)
    torch.testing.assert_close(both[mirrored], ours[mirrored].flip(3))
    torch.testing.assert_close(both[~mirrored], ours[~mirrored])


@pytest.mark.parametrize(("height", "width", "smallest"), [(64, 64, 0.08), (64, 64, 0.2), (20, 48, 0.3)])
def test_boxes_are_drawn_as_torchvision_draws_them(height: int, width: int, smallest: float) -> None:
    torch.manual_seed(0)
    image, shapes = torch.zeros(1, height, width), [3 / 4, 4 / 3]
    drawn = [RandomResizedCrop.get_params(image, [smallest, 1.0], shapes) for _ in range(4000)]
    theirs = np.array([(top, left, tall, wide, tall * wide) for top, left, tall, wide in drawn])
    top, left, tall, wide = augment.random_boxes(4000, height, width, smallest, seeded("boxes"))
    ours = torch.stack([top, left, tall, wide, tall * wide], 1).numpy()
    for own, published in zip(ours.T, theirs.T, strict=True):
        assert stats.ks_2samp(own, published).pvalue > 0.001
    if smallest == 0.2:
        assert ours[:, 4].mean() / (height * width) == pytest.approx(0.55, abs=0.015), "0.594 if boxes were clamped"


@pytest.mark.parametrize(("height", "width"), [(4, 40), (40, 4), (30, 30)])
def test_a_box_that_never_fits_is_the_middle(height: int, width: int) -> None:
    """With the whole area asked for, hardly any shape fits: torchvision then takes the middle."""
    box = augment.random_boxes(50, height, width, 1.0 - 1e-6, seeded("middle"))
    drawn = {tuple(map(int, row)) for row in torch.stack(box, 1)}
    torch.manual_seed(0)
    image = torch.zeros(1, height, width)
    theirs = {RandomResizedCrop.get_params(image, [1.0 - 1e-6, 1.0], [3 / 4, 4 / 3]) for _ in range(50)}
    assert drawn == theirs


def test_random_resized_crop_has_the_areas_and_shapes_it_should() -> None:
    top, left, tall, wide = augment.random_boxes(4000, 64, 64, 0.2, seeded("boxes"))
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + tall <= 64).all()
    assert (left + wide <= 64).all()
    area = tall * wide / 64**2
    assert 0.18 < area.min() < 0.25
    assert area.max() > 0.95
    inside = (tall < 64) & (wide < 64)
    assert 0.7 < (wide / tall)[inside].min() < 0.8
    assert 1.25 < (wide / tall)[inside].max() < 1.4


@pytest.mark.parametrize(
    ("ours", "theirs", "low", "high"),
    [
        (transforms.adjust_brightness, functional.adjust_brightness, 0.2, 1.8),
        (transforms.adjust_contrast, functional.adjust_contrast, 0.2, 1.8),
        (transforms.adjust_saturation, functional.adjust_saturation, 0.2, 1.8),
        (transforms.adjust_hue, functional.adjust_hue, -0.5, 0.5),
    ],
    ids=["brightness", "contrast", "saturation", "hue"],
)
def test_colour_adjustments_equal_torchvision(ours: object, theirs: object, low: float, high: float) -> None:
    assert callable(ours)
    factor = _uniform(low, high)
    expected = _each(theirs, factor)
    torch.testing.assert_close(ours(FLOATS, factor), expected, atol=2e-5, rtol=0)
    torch.testing.assert_close(ours(IMAGES, factor), expected, atol=2e-5, rtol=0)


def test_jitter_has_an_order_for_each_image() -> None:
    """Against torchvision's adjustments, applied to one image after the other in its own order."""
    orders = list(itertools.permutations(range(4)))
    chosen = [orders[i % 24] for i in range(40)]
    strengths = torch.stack([_uniform(0.6, 1.4, seed) for seed in range(3)] + [_uniform(-0.1, 0.1, 3)])
    theirs = (
        functional.adjust_brightness, functional.adjust_contrast, functional.adjust_saturation, functional.adjust_hue,
    )  # fmt: skip
    expected = []
    for i, order in enumerate(chosen):
        image = FLOATS[i]
        for kind in order:
            image = theirs[kind](image, float(strengths[kind, i]))
        expected.append(image)
    for images in (FLOATS, IMAGES):
        ours = transforms.jitter(images, strengths, torch.tensor(chosen))
        torch.testing.assert_close(ours, torch.stack(expected), atol=5e-5, rtol=0)
    drawn: list[Tensor] = []

    def spy(images: Tensor, strengths_4B: Tensor, order_B4: Tensor) -> Tensor:
        drawn.append(order_B4)
        return images

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(augment, "jitter", spy)
        augment.random_jitter(torch.zeros(2400, 3, 1, 1), seeded("jitter"))
    _, counts = drawn[0].unique(dim=0, return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts.numpy()).pvalue > 0.001


def test_greyscale_equals_torchvision() -> None:
    expected = functional.rgb_to_grayscale(FLOATS, num_output_channels=3)
    torch.testing.assert_close(transforms.greyscale(FLOATS), expected, atol=1e-4, rtol=0)


def test_blur_equals_torchvision() -> None:
    sigma = _uniform(0.1, 2.0)
    expected = _each(lambda image, s: functional.gaussian_blur(image, [7, 7], [s, s]), sigma)
    torch.testing.assert_close(transforms.gaussian_blur(FLOATS, sigma, radius=3), expected, atol=1e-5, rtol=0)


def test_rotation_equals_torchvision() -> None:
    degrees = _uniform(-90, 90)
    expected = _each(lambda image, angle: functional.rotate(image, angle, InterpolationMode.BILINEAR), degrees)
    torch.testing.assert_close(transforms.rotate(FLOATS, degrees), expected, atol=1e-4, rtol=0)
    turned = augment.random_rotation(FLOATS, 10, seeded("turn"))
    assert (turned - FLOATS).abs().mean() > 0.01


def test_the_shares_of_mixup_are_drawn_from_a_beta_distribution() -> None:
    shares = np.array([augment.beta(0.4, seeded("share", i)) for i in range(2000)])
    assert shares.mean() == pytest.approx(0.5, abs=0.03)
    assert shares.var() == pytest.approx(0.25 / 1.8, abs=0.01)  # 1 / (4 (2 a + 1))


def test_house_numbers_are_turned_by_15_degrees_at_most_and_cropped() -> None:
    images = IMAGES[:, :, :10].contiguous()
    recipe = augment.augmentation_by_name("rotate-crop", 10)
    assert recipe is not None
    ours = recipe(images, seeded("svhn"))
    generator = seeded("svhn")
    degrees = torch.empty(40).uniform_(-15, 15, generator=generator)
    turned = torch.stack(
        [
            functional.rotate(image.float() / 255, float(angle), InterpolationMode.BILINEAR)
            for image, angle in zip(images, degrees, strict=True)
        ]
    )
    torch.testing.assert_close(ours, augment.random_crop(turned, 1, generator), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "name", ["crop", "crop-flip", "rotate-crop", "resized-crop", "self-supervised", "self-supervised-blur"]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_recipe_gives_images_and_repeats_itself(name: str, channels: int) -> None:
    images = torch.randint(0, 256, (16, channels, 32, 32), dtype=torch.uint8)
    recipe = augment.augmentation_by_name(name, 32)
    assert recipe is not None
    before = images.clone()
    first, second = recipe(images, seeded(1)), recipe(images, seeded(1))
    assert torch.equal(first, second)
    assert torch.equal(images, before), "the images themselves must stay as they are"
    assert not torch.equal(recipe(images, seeded(2)), first)
    assert first.shape[:2] == (16, channels)
    assert first.shape[2] == (28 if name == "resized-crop" else 32)
    if first.dtype != torch.uint8:
        assert first.min() >= -1e-5
        assert first.max() <= 1 + 1e-5


@pytest.mark.parametrize("flip", [True, False])
def test_operators_can_be_left_out_down_to_the_crop(flip: bool) -> None:
    images = torch.randint(0, 256, (16, 3, 32, 32), dtype=torch.uint8)
    crop = augment.augmentation_by_name("self-supervised,no-jitter,no-grey" + ("" if flip else ",no-flip"), 32)
    assert crop is not None
    expected = augment.random_resized_crop(images, seeded(3), smallest=0.2, flip=flip)
    assert torch.equal(crop(images, seeded(3)), expected)
    greyed = augment.augmentation_by_name("self-supervised,no-jitter" + ("" if flip else ",no-flip"), 32)
    assert greyed is not None
    found = greyed(images, seeded(3))
    grey = (found - transforms.greyscale(found)).abs().amax((1, 2, 3)) < 1e-3
    assert 0 < grey.sum() < 16
    assert torch.equal(found[~grey], expected[~grey])


def test_an_unknown_name_is_refused() -> None:
    assert augment.augmentation_by_name("none", 8) is None
    with pytest.raises(UserError, match="--augment 'twirl' is not known"):
        augment.augmentation_by_name("twirl", 8)
    for odd in ("self-supervised,no-hue", "crop,no-flip"):
        with pytest.raises(UserError, match=f"--augment {odd} is not known"):
            augment.augmentation_by_name(odd, 8)


def test_resized_crops_keep_the_size_where_a_network_needs_it() -> None:
    images = torch.randint(0, 256, (3, 1, 8, 12), dtype=torch.uint8)
    for keep_size, shape in ((False, (7, 7)), (True, (8, 12))):
        crop = augment.augmentation_by_name("resized-crop", 8, keep_size=keep_size)
        assert crop is not None
        assert crop(images, torch.Generator().manual_seed(0)).shape[2:] == shape


@pytest.mark.parametrize("size", [5, 9, 24])
def test_whole_images_are_resized_as_torchvision_does(size: int) -> None:
    images = torch.rand(3, 3, 12, 16, generator=seeded(0, "resized"))
    theirs = functional.resize(images, [size, size], interpolation=InterpolationMode.BILINEAR, antialias=True)
    torch.testing.assert_close(transforms.resized(images, size), theirs, atol=1e-5, rtol=1e-5)


def test_shifted_images_are_filled_with_what_they_mirror() -> None:
    """Every image that comes out is a window of the reflected one, or the mirror image of a window."""
    image = torch.rand(1, 3, 32, 32, generator=seeded(0, "shift"))
    shift = augment.augmentation_by_name("shift-flip", 32)
    assert shift is not None
    padded = np.pad(image[0].numpy(), ((0, 0), (2, 2), (2, 2)), mode="reflect")
    windows = [padded[:, top : top + 32, left : left + 32] for top in range(5) for left in range(5)]
    known = {window.tobytes() for window in (*windows, *(own[:, :, ::-1].copy() for own in windows))}
    found = {own.numpy().tobytes() for own in shift(image.expand(1000, -1, -1, -1), seeded(1, "shift"))}
    assert len(known) == 50
    assert found == known
