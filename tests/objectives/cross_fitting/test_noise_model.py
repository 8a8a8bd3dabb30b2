"""Noise models: rate and temperature found where they are known, V only where labels speak for it."""

import pytest
import torch
from torch import Tensor

from selfadapt.core.rng import seeded
from selfadapt.evaluation.label_errors.out_of_sample import judge_out_of_sample
from selfadapt.objectives.cross_fitting.noise_model import (
    class_noise,
    fit_symmetric,
    mean_by_likelihood,
    noise_of,
    prefers_classes,
    sharpened,
)
from selfadapt.objectives.cross_fitting.transition import symmetric


def _drawn(matrix_KK: Tensor, count: int = 6000) -> tuple[Tensor, Tensor, Tensor]:
    """Calibrated predictions, truth drawn from them and labels drawn from V."""
    generator = seeded(0, "noise model")
    predicted_NK = (torch.randn(count, len(matrix_KK), generator=generator) * 3).softmax(1)
    truth_N = torch.multinomial(predicted_NK, 1, generator=generator).squeeze(1)
    labels_N = torch.multinomial(matrix_KK[truth_N], 1, generator=generator).squeeze(1)
    return predicted_NK, truth_N, labels_N


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.4])
@pytest.mark.parametrize("power", [0.5, 1.0])
def test_rate_and_temperature_are_found_together(rate: float, power: float) -> None:
    predicted_NK, _, labels_N = _drawn(symmetric(rate, 6))
    found = fit_symmetric(sharpened(predicted_NK, power), labels_N)
    assert found.rate == pytest.approx(rate, abs=0.025)
    assert found.temperature * power == pytest.approx(1.0, rel=0.2)


def test_class_noise_only_where_labels_speak_for_it() -> None:
    fold_N = torch.arange(6000) % 5
    even = symmetric(0.2, 6)
    next_KK = torch.eye(6) * 0.8 + torch.eye(6).roll(1, 1) * 0.2
    for matrix_KK, tolerance in ((even, 0.03), (next_KK, 0.08)):
        predicted_NK, _, labels_N = _drawn(matrix_KK)
        found = noise_of(predicted_NK, labels_N, fold_N)
        torch.testing.assert_close(found.matrix_KK, matrix_KK, atol=tolerance, rtol=0)
    predicted_NK, truth_N, _ = _drawn(even)
    biased_NK = predicted_NK.roll(1, 1) * 0.1 + predicted_NK * 0.9  # a model that confuses classes, labels as they are
    found = noise_of(biased_NK, truth_N, fold_N)
    off = found.matrix_KK[~torch.eye(6, dtype=torch.bool)]
    assert off.max() < 1.01 * off.min(), "what the model confuses is not label noise"


def test_a_small_gain_is_enough_for_the_verdict_on_a_mean() -> None:
    """One class in six goes wrong in one direction: V for the verdict, though not to move targets by."""
    fold_N, matrix_KK = torch.arange(6000) % 5, torch.eye(6)
    matrix_KK[0, 0], matrix_KK[0, 1] = 0.85, 0.15
    predicted_NK, truth_N, labels_N = _drawn(matrix_KK)
    assert not prefers_classes(predicted_NK, labels_N, fold_N)
    found = class_noise(predicted_NK, labels_N, fold_N).matrix_KK
    assert 0.1 < found[0, 1] < 0.2
    off_KK = found.clone().fill_diagonal_(0)
    off_KK[0, 1] = 0
    assert off_KK.max() < 0.03
    assert class_noise(predicted_NK, truth_N, fold_N).matrix_KK.diagonal().min() > 0.98


def test_the_better_of_two_predictions_counts_more() -> None:
    predicted_NK, _, labels_N = _drawn(symmetric(0.1, 6))
    guess_NK = torch.full_like(predicted_NK, 1 / 6)
    torch.testing.assert_close(mean_by_likelihood(predicted_NK, guess_NK, labels_N), predicted_NK)
    torch.testing.assert_close(mean_by_likelihood(guess_NK, predicted_NK, labels_N), predicted_NK)


def test_without_visible_errors_a_few_are_expected_where_predictions_disagree() -> None:
    """Labels drawn from the predictions: none is wrong by the likelihood. At most half of what disagrees is listed."""
    predicted_NK, truth_N, _ = _drawn(torch.eye(6))
    found = judge_out_of_sample(predicted_NK, truth_N, symmetric(0.0, 6))
    disagreeing = float((1 - predicted_NK.gather(1, truth_N.unsqueeze(1))).mean())
    assert found.p_wrong.mean() == pytest.approx(disagreeing / (2 + 30 * disagreeing), rel=1e-3)
    assert (predicted_NK.argmax(1) != truth_N)[found.is_error].all()
    assert 0 < found.is_error.mean() <= 0.04
