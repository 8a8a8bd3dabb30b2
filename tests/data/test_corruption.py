"""Label noise: what must hold for every rate, seed and number of classes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfadapt.data.corruption import Noise, actual_rate, corrupt
from selfadapt.data.seeds import seeded
from selfadapt.data.sources import open_data
from selfadapt.errors import UserError

CASES = given(seed=st.integers(0, 10_000), rate=st.floats(0, 1), classes=st.integers(2, 12))


def _draw(kind: str, rate: float, classes: int, seed: int, count: int = 4000) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(count) % classes
    return labels, Noise(kind=kind, rate=rate).draw(labels, classes, seeded(seed))  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@CASES
def test_symmetric_noise_has_its_rate(seed: int, rate: float, classes: int) -> None:
    labels, noisy = _draw("symmetric", rate, classes, seed)
    expected = rate * (classes - 1) / classes
    assert (noisy != labels).double().mean().item() == pytest.approx(expected, abs=0.05)
    assert 0 <= noisy.min() <= noisy.max() < classes


@settings(max_examples=40, deadline=None)
@CASES
def test_symmetric_other_never_keeps_a_label_it_strikes(seed: int, rate: float, classes: int) -> None:
    labels, noisy = _draw("symmetric-other", rate, classes, seed)
    assert (noisy != labels).double().mean().item() == pytest.approx(rate, abs=0.05)
    assert (_draw("symmetric-other", 1.0, classes, seed)[1] != labels).all()


@settings(max_examples=20, deadline=None)
@CASES
def test_the_same_seed_draws_the_same_noise(seed: int, rate: float, classes: int) -> None:
    assert torch.equal(_draw("symmetric", rate, classes, seed)[1], _draw("symmetric", rate, classes, seed)[1])


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


@pytest.mark.parametrize(
    "text", ["symmetric", "symmetric:", "symmetric:1.2", "symmetric:-1", "upside:0.4", "symmetric:nan"]
)
def test_bad_noise_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is not KIND:RATE"):
        Noise.parse(text)
