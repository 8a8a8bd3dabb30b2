"""Which samples are duplicates of one another, and which are merely alike."""

import io
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter
from sklearn.datasets import load_digits, load_sample_images

from data.textures import noise_textures
from selfadapt.core.rng import seeded
from selfadapt.data.duplicates.groups import (
    DuplicateGroup,
    find_duplicates,
    group_numbers,
    joined_groups,
    separable_groups,
    single_image_classes,
)

Array = np.ndarray[Any, np.dtype[Any]]
RESIZERS = (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC, Image.Resampling.LANCZOS)


def _found(images: Sequence[Array], hashes: Sequence[str] | None = None) -> list[DuplicateGroup[int]]:
    return find_duplicates(torch.zeros(len(images), 1), hashes=hashes, read_pixels=lambda sample, most: images[sample])


def _members(groups: Sequence[DuplicateGroup[int]]) -> list[list[int]]:
    return [list(group.members) for group in groups]


def _photos(side: int) -> list[Array]:
    """Eleven parts of two photographs that do not overlap, each turned and mirrored in eight ways."""
    parts = [
        np.array(Image.fromarray(photo[top : top + 192, left : left + 192]).resize((side, side)))
        for photo in load_sample_images().images
        for top in (0, 192)
        for left in (0, 192, 384)
    ]
    turned = [np.rot90(part, turns) for part in parts if part.std() > 30 for turns in range(4)]  # not the bare wall
    return [np.ascontiguousarray(own) for part in turned for own in (part, part[:, ::-1])]


def _shirts(count: int) -> list[Array]:
    """Grey images of 28 pixels with one silhouette, of slightly different shape, that differ in their texture."""
    generator = np.random.default_rng(0)
    rows, columns = np.mgrid[:28, :28]
    shirts = []
    for _ in range(count):
        width, neck = generator.uniform(8, 11), generator.uniform(2, 4)
        body = (abs(columns - 13.5) < width) & (rows > 3) & ~((abs(columns - 13.5) < neck) & (rows < 6))
        texture = gaussian_filter(generator.normal(size=(28, 28)), 1.5)
        shirts.append(np.clip(body * (150 + 30 * texture / texture.std()), 0, 255).astype(np.uint8))
    return shirts


def _jpeg(pixels: Array, quality: int) -> Array:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    return np.array(Image.open(file))


def _scaled(pixels: Array, factor: float, resizer: Image.Resampling) -> Array:
    size = round(pixels.shape[1] * factor), round(pixels.shape[0] * factor)
    return np.array(Image.fromarray(pixels).resize(size, resizer))


def _cropped(pixels: Array, share: float, generator: np.random.Generator) -> Array:
    sides = [side - round(side * share) for side in pixels.shape[:2]]
    top, left = (int(generator.integers(full - side + 1)) for full, side in zip(pixels.shape, sides, strict=False))
    return pixels[top : top + sides[0], left : left + sides[1]]


@pytest.mark.parametrize("way", ["jpeg", "scaled", "cropped", "cropped and scaled back"])
@pytest.mark.parametrize("kind", ["photos", "shirts"])
def test_an_image_saved_again_is_found_and_nothing_else_is(kind: str, way: str) -> None:
    generator = np.random.default_rng(1)
    images = _photos(64) if kind == "photos" else _shirts(100)
    again = []
    for number, image in enumerate(images):
        resizer = RESIZERS[number % 3]
        if way == "jpeg":
            again.append(_jpeg(image, int(generator.integers(50, 96))))
        elif way == "scaled":
            again.append(_scaled(image, generator.uniform(0.5, 1.0), resizer))
        else:
            crop = _cropped(image, generator.uniform(0.02, 0.1), generator)
            size = image.shape[1], image.shape[0]
            back = way == "cropped and scaled back"
            again.append(np.array(Image.fromarray(crop).resize(size, resizer)) if back else crop)
    groups = _found([*images, *again])
    pairs = {group.members for group in groups if group.kind == "same image"}
    expected = {(number, len(images) + number) for number in range(len(images))}
    assert len(pairs & expected) >= 0.95 * len(expected)
    assert len({group.members for group in groups} - expected) <= 0.01 * len(expected)


@pytest.mark.parametrize("side", [32, 64])
def test_noise_textures_are_not_duplicates(side: int) -> None:
    assert _found(noise_textures(180, side)) == []


def test_digits_are_not_duplicates() -> None:
    assert _found([(image * 15.9).astype(np.uint8) for image in load_digits().images]) == []


def test_shirts_that_look_the_same_small_are_not_duplicates() -> None:
    shirts = _shirts(400)
    small = np.stack([_scaled(shirt, 8 / 28, Image.Resampling.BOX).ravel() for shirt in shirts])
    alike = np.corrcoef(small) - np.eye(len(shirts))
    assert (alike > 0.9).sum() > 1000, "thumbnails alone would call many of them duplicates"
    assert _found(shirts) == []


def test_kinds_are_told_apart() -> None:
    images = _photos(96)
    changed = images[24].copy()
    changed[60:80, 60:80] = changed[60:80, 60:80][::-1, ::-1]
    everything = [*images, images[0], _jpeg(images[1], 70), changed, _jpeg(images[0], 80)]
    hashes = [image.tobytes().hex() for image in everything]
    count = len(images)
    assert _found(everything, hashes) == [
        DuplicateGroup((0, count, count + 3), "same image"),
        DuplicateGroup((1, count + 1), "same image"),
        DuplicateGroup((24, count + 2), "same scene"),
    ]
    assert _found(everything[: count + 1], hashes[: count + 1]) == [DuplicateGroup((0, count), "same file")]
    assert [kind.is_evidence for kind in _found(everything, hashes)] == [True, True, False]


def test_plain_and_tiny_images_count_only_if_equal() -> None:
    plain = [np.full((40, 40, 3), value, np.uint8) for value in (7, 200, 7)]
    assert _found(plain) == []
    assert _found(plain, ["a", "b", "a"]) == [DuplicateGroup((0, 2), "same file")]
    assert _found(plain[:1]) == _found([]) == []


def test_colour_matters() -> None:
    images = [photo for photo in _photos(64) if (photo.max(2) - photo.min(2)).mean() > 40]
    assert len(images) > 10
    assert _found([*images, *(image[:, :, ::-1] for image in images)]) == []


@pytest.mark.parametrize("width", [3, 300])
def test_equal_rows_are_duplicates_where_most_rows_differ(width: int) -> None:
    features_NF = torch.randn(50, width, generator=seeded(0, "rows"))
    features_NF[:, 0] = 0.0
    again_nF = features_NF[[4, 7, 7]]
    again_nF[:, 0] = -0.0
    groups = find_duplicates(torch.cat([features_NF, again_nF]))
    assert groups == [DuplicateGroup((4, 50), "same file"), DuplicateGroup((7, 51, 52), "same file")]
    assert _members(find_duplicates(features_NF.repeat(2, 1))) == [[row, 50 + row] for row in range(50)]


@pytest.mark.parametrize("width", [3, 300])
def test_equal_rows_are_not_duplicates_where_few_rows_are_distinct(width: int) -> None:
    kinds_nF = torch.randint(2, (8, width), generator=seeded(0, "kinds")).float()
    chosen_N = torch.randint(8, (1000,), generator=seeded(0, "chosen"))
    assert find_duplicates(kinds_nF[chosen_N]) == []


def test_a_chain_of_features_is_not_one_group() -> None:
    """Each row is like the next one; rows far apart in the chain are not alike."""
    generator = seeded(0, "chain")
    ends_2F = torch.randn(2, 400, generator=generator)
    angle_n1 = torch.linspace(0, torch.pi / 2, 13).unsqueeze(1)
    chain_nF = angle_n1.cos() * ends_2F[0] + angle_n1.sin() * ends_2F[1]
    features_NF = torch.cat([torch.randn(200, 400, generator=generator), chain_nF])
    groups = find_duplicates(features_NF)
    assert {group.kind for group in groups} == {"same image"}
    assert len(groups) >= 2
    unit_NF = torch.nn.functional.normalize(features_NF)
    for members in _members(groups):
        cosine = unit_NF[members] @ unit_NF[members].T
        assert cosine.amin(1).max() > 0.9, "one member is like all others"
    assert len({member for members in _members(groups) for member in members}) == sum(map(len, _members(groups)))


@pytest.mark.parametrize("width", [3, 300])
def test_memory_grows_with_rows_not_with_pairs(width: int) -> None:
    features_NF = torch.randn(3000, width, generator=seeded(0, "rows"))
    features_NF[1500:] = features_NF[1499]
    tracemalloc.start()
    try:
        assert _members(find_duplicates(features_NF)) == [list(range(1499, 3000))]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1000 * len(features_NF), "bytes; every pair as a tuple would be fifty times as much"


def test_groups_that_overlap_get_one_number() -> None:
    assert group_numbers([[0, 1], [0, 1, 3], [2, 4]], 6).tolist() == [0, 0, 2, 0, 2, 5]
    joined_N = joined_groups(group_numbers([[0, 1], [3, 4]], 6), group_numbers([[1, 3]], 6))
    assert joined_N.tolist() == [0, 0, 2, 0, 0, 5]


def test_a_class_of_one_image_is_not_kept_together_and_a_warning_names_it() -> None:
    labels_N = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2])
    groups = [[0, 1, 2, 3], [4, 5]]
    assert single_image_classes(groups, labels_N, 3).tolist() == [True, False, False]
    with pytest.warns(UserWarning, match="not judged: cat;"):
        number_N = separable_groups(groups, labels_N, ["cat", "dog", "cow"])
    assert number_N.tolist() == [0, 1, 2, 3, 4, 4, 6, 7]


def test_too_few_samples_besides_duplicates_are_a_warning() -> None:
    with pytest.warns(UserWarning, match="only 2 of 6 samples are distinct, too few for folds"):
        number_N = separable_groups([[0, 1, 2], [3, 4, 5]], torch.tensor([0, 1, 0, 1, 0, 1]), ["cat", "dog"])
    assert number_N.tolist() == list(range(6))
