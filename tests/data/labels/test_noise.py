"""Noise: what must hold for every rate, seed and number of classes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from selfadapt.core.errors import UserError
from selfadapt.core.rng import seeded
from selfadapt.data.dataset import Data, Samples
from selfadapt.data.images.storage import TensorImages
from selfadapt.data.input_statistics import channel_statistics
from selfadapt.data.labels.image_noise import corrupt_images
from selfadapt.data.labels.noise import (
    CIFAR10_FLIPS,
    Noise,
    actual_rate,
    corrupt,
    flips,
    instance_probabilities,
    noisy_labels,
    truncated_normal,
)
from selfadapt.data.sources.builtin import CIFAR10_CLASSES
from selfadapt.data.sources.catalog import open_data

CASES = given(seed=st.integers(0, 10_000), rate=st.floats(0, 1), classes=st.integers(2, 12))


def _data(classes: int | tuple[str, ...], count: int = 4000) -> Data:
    names = tuple(str(k) for k in range(classes)) if isinstance(classes, int) else classes
    labels = torch.arange(count) % len(names)
    images = torch.randint(0, 256, (count, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    samples = Samples(inputs=TensorImages(images), labels=labels, truth=None, ids=[str(i) for i in range(count)])
    return Data(name="made", classes=names, train=samples, validation=None, test=samples)


def _draw(kind: str, rate: float, data: Data, seed: int) -> torch.Tensor:
    return noisy_labels(Noise(kind=kind, rate=rate), data, data.train, seeded(seed), seed)


def _share(changed: torch.Tensor) -> float:
    return changed.double().mean().item()


@settings(max_examples=40)
@CASES
def test_symmetric_noise_has_its_rate(seed: int, rate: float, classes: int) -> None:
    data = _data(classes)
    noisy = _draw("symmetric", rate, data, seed)
    assert _share(noisy != data.train.labels) == pytest.approx(rate * (classes - 1) / classes, abs=0.05)
    assert 0 <= noisy.min() <= noisy.max() < classes


@settings(max_examples=40)
@CASES
def test_symmetric_other_never_keeps_a_label_it_corrupts(seed: int, rate: float, classes: int) -> None:
    data = _data(classes)
    assert _share(_draw("symmetric-other", rate, data, seed) != data.train.labels) == pytest.approx(rate, abs=0.05)
    assert (_draw("symmetric-other", 1.0, data, seed) != data.train.labels).all()


@settings(max_examples=40)
@CASES
def test_circular_noise_goes_to_the_next_class_only(seed: int, rate: float, classes: int) -> None:
    data = _data(classes)
    noisy = _draw("asymmetric", rate, data, seed)
    changed = noisy != data.train.labels
    assert _share(changed) == pytest.approx(rate, abs=0.05)
    assert torch.equal(noisy[changed], (data.train.labels[changed] + 1) % classes)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), rate=st.floats(0, 1))
def test_cifar10_s_asymmetric_noise_touches_its_classes_only(seed: int, rate: float) -> None:
    data = _data(CIFAR10_CLASSES)
    noisy, labels = _draw("asymmetric", rate, data, seed), data.train.labels
    for k, name in enumerate(CIFAR10_CLASSES):
        changed = noisy[labels == k] != k
        if name in CIFAR10_FLIPS:
            assert _share(changed) == pytest.approx(rate, abs=0.1)
            to = {CIFAR10_CLASSES[int(j)] for j in noisy[labels == k][changed]}
            assert to <= {CIFAR10_FLIPS[name]}
        else:
            assert not changed.any()


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), rate=st.floats(0, 1), kind=st.sampled_from(["symmetric", "asymmetric", "instance"]))
def test_the_same_seed_draws_the_same_noise(seed: int, rate: float, kind: str) -> None:
    data = _data(5, 500)
    assert torch.equal(_draw(kind, rate, data, seed), _draw(kind, rate, data, seed))


def test_the_paper_s_flips() -> None:
    names = {CIFAR10_CLASSES[i]: CIFAR10_CLASSES[int(j)] for i, j in enumerate(flips(CIFAR10_CLASSES))}
    moved = {old: new for old, new in names.items() if old != new}
    assert moved == {"truck": "automobile", "bird": "airplane", "deer": "horse", "cat": "dog", "dog": "cat"}


def test_instance_noise_depends_on_the_image_as_in_its_authors_program() -> None:
    """The labels against the odds of the authors' formula, sample by sample and in double precision."""
    data, classes, seed = _data(6, 6000), 6, 1
    noisy, labels = _draw("instance", 0.4, data, seed).numpy(), data.train.labels.numpy()
    x = data.train.inputs.read(torch.arange(6000)).flatten(1).double().numpy()
    w = [torch.randn(16, classes, generator=seeded(seed, "instance", k)).double().numpy() for k in range(classes)]
    odds = np.zeros((6000, classes))
    for i, k in enumerate(labels):
        scores = x[i] @ w[k]
        scores[k] = -np.inf
        odds[i] = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    changed = noisy != labels
    assert changed.mean() == pytest.approx(0.4, abs=0.02)
    assert odds[changed, noisy[changed]].mean() > 0.99, "raw pixels leave nearly one class to be mistaken for"
    means = np.stack([odds[labels == k].mean(0) for k in range(classes)])
    known, blind = (-(p * np.log(np.maximum(p, 1e-300))).sum(1).mean() for p in (odds, means))
    assert blind - known > 0.3, "nats that an image tells of the class that it is mistaken for"


def test_the_odds_of_instance_noise_are_the_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    values, weights = torch.rand(7, 5, generator=generator), torch.randn(5, 4, generator=generator)
    rate = torch.rand(7, generator=generator)
    ours = instance_probabilities(values, weights, 2, rate).numpy()
    for i in range(7):
        scores = np.exp(values[i].double().numpy() @ weights.double().numpy())
        scores[2] = 0.0
        wanted = float(rate[i]) * scores / scores.sum()
        wanted[2] = 1 - float(rate[i])
        np.testing.assert_allclose(ours[i], wanted, rtol=1e-4)


@pytest.mark.parametrize("mean", [0.05, 0.4, 0.95])
def test_rates_of_instance_noise_are_a_truncated_normal(mean: float) -> None:
    drawn = truncated_normal(mean, 0.1, 4000, seeded(3, "rates")).double().numpy()
    published = stats.truncnorm(-mean / 0.1, (1 - mean) / 0.1, loc=mean, scale=0.1)
    assert stats.kstest(drawn, published.cdf).pvalue > 0.01
    assert 0 <= drawn.min() <= drawn.max() <= 1


def test_no_instance_noise_at_a_rate_of_zero() -> None:
    data = _data(4, 200)
    assert torch.equal(_draw("instance", 0.0, data, 1), data.train.labels)


def test_a_user_s_matrix_is_followed(tmp_path: Path) -> None:
    matrix = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.2, 0.2, 0.6]])
    np.savetxt(tmp_path / "t.csv", matrix, delimiter=",")
    np.save(tmp_path / "t.npy", matrix)
    data = _data(3, 9000)
    for name in ("t.csv", "t.npy"):
        noise = Noise.parse(f"matrix:{tmp_path / name}")
        noisy = noisy_labels(noise, data, data.train, seeded(0), 0)
        for k in range(3):
            found = torch.bincount(noisy[data.train.labels == k], minlength=3).double() / 3000
            np.testing.assert_allclose(found.numpy(), matrix[k], atol=0.03)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1,0\n0,1\n", "has shape .2, 2., but the data have 3 classes"),
        ("1,0,0\n0,1,0\n0,1,1\n", "row 2 must"),
        ("a,b", "cannot be read"),
    ],
)
def test_a_bad_matrix_is_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(content)
    data = _data(3, 30)
    with pytest.raises(UserError, match=message):
        corrupt(data, Noise.parse(f"matrix:{tmp_path / 't.csv'}"), 0)


def test_noise_spares_the_test_part_and_keeps_the_truth() -> None:
    clean = open_data("digits")
    noisy = corrupt(clean, Noise.parse("symmetric:0.4"), seed=1)
    assert noisy.train.truth is not None
    assert torch.equal(noisy.train.truth, clean.train.labels)
    assert noisy.validation is not None
    assert clean.validation is not None
    assert not torch.equal(noisy.validation.labels, clean.validation.labels)
    assert noisy.test is clean.test
    assert actual_rate(noisy.train) == pytest.approx(0.36, abs=0.04)
    assert noisy.fingerprint == clean.fingerprint


def _images(samples: Samples) -> torch.Tensor:
    return samples.inputs.read(torch.arange(len(samples)))


def test_gaussian_images_have_the_statistics_of_the_set() -> None:
    data = _data(3, 2000)
    noisy = corrupt(data, Noise.parse("gaussian:0.5"), 3).train
    assert noisy.corrupted is not None
    assert actual_rate(noisy) == pytest.approx(0.5, abs=0.04)
    assert torch.equal(noisy.labels, data.train.labels)
    old, new = _images(data.train), _images(noisy)
    assert torch.equal(old[~noisy.corrupted], new[~noisy.corrupted])
    mean, std = channel_statistics(data.train.inputs)
    replaced = new[noisy.corrupted].double() / 255
    assert replaced.mean().item() == pytest.approx(float(mean), abs=0.01)
    assert replaced.std().item() == pytest.approx(float(std), abs=0.05)  # clipping takes a little


@pytest.mark.parametrize("kind", ["random-pixels", "shuffled-pixels"])
def test_pixels_are_permuted(kind: str) -> None:
    data = _data(3, 300)
    noisy = corrupt(data, Noise.parse(f"{kind}:1"), 3).train
    old, new = _images(data.train).flatten(1), _images(noisy).flatten(1)
    assert torch.equal(old.sort(1).values, new.sort(1).values)
    marked = torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4).repeat(50, 1, 1, 1)
    samples = replace(data.train.take(torch.arange(50)), inputs=TensorImages(marked))
    everywhere = torch.ones(50, dtype=torch.bool)
    orders = _images(corrupt_images(samples, kind, everywhere, channel_statistics(samples.inputs), 3)).flatten(1)
    different = len({tuple(order.tolist()) for order in orders})
    assert different == (50 if kind == "random-pixels" else 1)


def test_image_noise_depends_on_the_id_and_not_on_the_order() -> None:
    data = _data(3, 100)
    order = torch.randperm(100, generator=torch.Generator().manual_seed(1))
    everywhere, statistics = torch.ones(100, dtype=torch.bool), channel_statistics(data.train.inputs)
    one = _images(corrupt_images(data.train, "random-pixels", everywhere, statistics, 5))
    other = _images(corrupt_images(data.train.take(order), "random-pixels", everywhere, statistics, 5))
    assert torch.equal(one[order], other)


@pytest.mark.parametrize(
    "text", ["symmetric", "symmetric:", "symmetric:1.2", "symmetric:-1", "upside:0.4", "symmetric:nan", "matrix:"]
)
def test_bad_noise_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is neither KIND:RATE"):
        Noise.parse(text)
