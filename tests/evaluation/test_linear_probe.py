"""Probes on features of known quality."""

import copy

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from selfadapt.core.rng import seeded
from selfadapt.data.dataset import Samples
from selfadapt.data.images.augment import augmentation_by_name
from selfadapt.data.images.storage import TensorImages
from selfadapt.data.loader import SampleLoader
from selfadapt.evaluation.linear_probe import (
    Features,
    LinearClassifier,
    collapsed,
    effective_rank,
    linear_probe,
    nearest_neighbours,
    spread,
)
from selfadapt.evaluation.probe_settings import ProbeSettings

GENERATOR = torch.Generator().manual_seed(0)


def _blobs(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(count) % 4
    centres = 2.0 * torch.eye(6)[:4]
    return centres[labels] + 0.8 * torch.randn(count, 6, generator=GENERATOR), labels


def test_the_linear_probe_is_as_good_as_logistic_regression() -> None:
    (train, labels), (test, truth) = _blobs(800), _blobs(2000)
    ours = (linear_probe(Features(train, labels, test, 4), ProbeSettings()) == truth).double().mean().item()
    theirs = LogisticRegression().fit(train, labels).score(test, truth)
    assert ours == pytest.approx(theirs, abs=0.02)
    again = linear_probe(Features(1000 * train - 7, labels, 1000 * test - 7, 4), ProbeSettings())
    assert (again == truth).double().mean().item() == pytest.approx(ours, abs=0.005)


def test_neighbours_vote_as_in_scikit_learn() -> None:
    (train, labels), (test, truth) = _blobs(300), _blobs(500)
    settings = ProbeSettings(neighbours=25)
    vote = KNeighborsClassifier(
        25, metric="cosine", algorithm="brute", weights=lambda distance: torch.tensor(-distance / 0.07).exp().numpy()
    ).fit(train, labels)
    ours = nearest_neighbours(Features(train, labels, test, 4), settings)
    assert (ours.numpy() == vote.predict(test)).mean() > 0.995
    assert (ours == truth).double().mean() > 0.8


def test_spread_and_rank_tell_collapse() -> None:
    wide = torch.randn(500, 20, generator=GENERATOR)
    assert spread(wide) == pytest.approx(1, abs=0.05)
    assert effective_rank(wide) == pytest.approx(20, rel=0.1)
    flat = torch.ones(500, 20) + 1e-4 * wide
    assert spread(flat) < 0.01
    line = torch.randn(500, 1, generator=GENERATOR) * torch.ones(1, 20) + 1e-6 * wide
    assert effective_rank(line) < 1.1
    assert not collapsed(spread(wide), spread(wide), effective_rank(wide), 32)
    assert collapsed(spread(flat), 0.9, 10, 32)
    assert collapsed(0.9, spread(flat), 10, 32)
    assert collapsed(0.9, 0.9, effective_rank(line), 32)
    assert collapsed(float("nan"), 0.9, 10, 32)
    few = wide[:3]
    assert not collapsed(spread(few), spread(few), effective_rank(few), 2), "three images have two directions"


SETTINGS = ProbeSettings(epochs=5, batch_size=16, seed=3, augment="crop-flip")
CPU = torch.device("cpu")


def _network() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(4 * 36, 6), torch.nn.Dropout(0.5))


def _images() -> Samples:
    pixels = torch.randint(0, 256, (40, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    ids = [str(number) for number in range(40)]
    return Samples(inputs=TensorImages(pixels), labels=torch.arange(40) % 3, truth=None, ids=ids)


def _loader(samples: Samples) -> SampleLoader:
    return SampleLoader(samples, batch_size=16, seed=3, device=CPU, augment=augmentation_by_name("crop-flip", 8))


def _written_out(network: torch.nn.Module, samples: Samples) -> tuple[np.ndarray, np.ndarray]:
    """Softmax regression by SGD in numpy, on crops that are cut image by image."""
    assert isinstance(samples.inputs, TensorImages)
    pixels, labels = samples.inputs.values_NCHW.numpy(), samples.labels.numpy()
    weight, bias, weight_speed, bias_speed = np.zeros((3, 6)), np.zeros(3), np.zeros((3, 6)), np.zeros(3)
    for epoch, rate in enumerate([0.4, 0.4, 0.4, 0.04, 0.004]):  # a tenth after 60 and 80 % of 5 epochs
        order = torch.randperm(40, generator=seeded(3, "order", epoch)).numpy()
        for step, own in enumerate(np.array_split(order, 3)):
            draws = seeded(3, "augment", epoch, step)
            top, left = (torch.randint(3, (len(own),), generator=draws).tolist() for _ in range(2))
            mirrored = (torch.rand(len(own), generator=draws) < 0.5).tolist()
            crops = []
            for place, number in enumerate(own):
                padded = np.pad(pixels[number], ((0, 0), (1, 1), (1, 1)))
                crop = padded[:, top[place] : top[place] + 8, left[place] : left[place] + 8]
                crops.append(crop[:, :, ::-1] if mirrored[place] else crop)
            with torch.no_grad():
                features = network(torch.from_numpy(np.stack(crops)).float() / 255).double().numpy()
            odds = np.exp(features @ weight.T + bias)
            error = (odds / odds.sum(1, keepdims=True) - np.eye(3)[labels[own]]) / len(own)
            weight_speed = 0.9 * weight_speed + error.T @ features
            bias_speed = 0.9 * bias_speed + error.sum(0)
            weight, bias = weight - rate * weight_speed, bias - rate * bias_speed
    return weight, bias


def test_a_classifier_on_augmented_images_takes_the_steps_written_out() -> None:
    samples, network = _images(), _network().train()
    before = copy.deepcopy(network.state_dict())
    classifier = LinearClassifier(6, 3, CPU)
    told: list[tuple[int, int]] = []
    classifier.learn_all(network, _loader(samples), SETTINGS, on_progress=lambda *done: told.append(done))
    assert told == [(step, 15) for step in range(1, 16)]
    assert network.training, "its mode is as it was"
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(value.grad is None for value in network.parameters())
    weight, bias = _written_out(network.eval(), samples)
    assert np.abs(weight).max() > 0.05
    np.testing.assert_allclose(classifier.layer.weight.detach(), weight, atol=1e-5)
    np.testing.assert_allclose(classifier.layer.bias.detach(), bias, atol=1e-5)
    features = torch.randn(20, 6, generator=GENERATOR)
    assert classifier.classes(features).tolist() == (features.numpy() @ weight.T + bias).argmax(1).tolist()


def test_a_classifier_that_was_stopped_goes_on_to_the_same_bits() -> None:
    samples, network = _images(), _network()
    whole, stopped, resumed = (LinearClassifier(6, 3, CPU) for _ in range(3))
    whole.learn_all(network, _loader(samples), SETTINGS)
    kept: list[dict[str, torch.Tensor]] = []

    def stop() -> None:
        kept.append(copy.deepcopy(stopped.state()))
        if len(kept) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped.learn_all(network, _loader(samples), SETTINGS, after_epoch=stop)
    resumed.load(kept[-1])
    assert resumed.epochs == 2
    resumed.learn_all(network, _loader(samples), SETTINGS)
    assert all(torch.equal(value, whole.state()[name]) for name, value in resumed.state().items())
