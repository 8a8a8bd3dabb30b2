"""Noise models: calibrated posteriors of the true class from out-of-sample predictions and labels.

There are two models of label noise. Symmetric noise has a single rate e. Class-dependent noise has a matrix V
(transition.py). Predictions are rescaled by a temperature b, q_ik ∝ p_ik^b, fitted together with the noise model,
because predictors fitted to noisy labels are underconfident:

    maximise over b and e   sum_i log[(1 - e) q_i[y_i] + e (1 - q_i[y_i]) / (K - 1)]

If wrong labels are random, the estimates of b, e and P(wrong) are accurate. Errors between classes that the
predictions confuse anyway do not change this likelihood; evaluation/label_errors/out_of_sample.py accounts for them.

A class-dependent V can mistake the systematic confusions of a model for label noise. Targets are updated with it, and
predictions of other models judged with it, only if held-out labels are clearly likelier under it (`prefers_classes`).
For P(wrong) from our own predictions it is always estimated, and shrunk towards symmetric noise as far as held-out
labels allow.

Shapes: N samples, K classes, T temperatures.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from selfadapt.objectives.cross_fitting.transition import (
    estimate_transition,
    likeliest_transition,
    symmetric,
    wrong_share,
)

_TEMPERATURES = tuple(0.5 * 16 ** (step / 24) for step in range(25))  # 0.5 to 8
_STEPS = 40  # EM steps for the rate
_COMPARED = 10_000  # number of samples used to fit temperature and rate
_LEAST_GAIN = 0.06  # of V over symmetric noise, in nats per label
_MARGIN = 3.0  # standard errors by which the gain must exceed 0
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # weights of the first of two predictions
_TINY = 1e-30
_SMALLEST = 1e-9  # class probability


@dataclass(frozen=True)
class NoiseModel:
    """P(given j | true k), and the temperature of the predictions."""

    matrix_KK: Tensor
    temperature: float

    def sharpened(self, predicted_NK: Tensor) -> Tensor:
        """Predictions at this temperature."""
        return sharpened(predicted_NK, self.temperature)


@dataclass(frozen=True)
class SymmetricFit:
    temperature: float
    rate: float
    likelihood: float  # mean log-likelihood of a label


def sharpened(predicted_NK: Tensor, temperature: float) -> Tensor:
    return (predicted_NK.clamp_min(_SMALLEST).log() * temperature).softmax(1)


def fit_symmetric(predicted_NK: Tensor, labels_N: Tensor) -> SymmetricFit:
    """Fit the temperature and the rate by maximum likelihood."""
    every = max(1, len(labels_N) // _COMPARED)
    predicted_nK, labels_n1 = predicted_NK[::every], labels_N[::every].unsqueeze(1)
    classes = predicted_NK.shape[1]
    given = [sharpened(predicted_nK, b).gather(1, labels_n1).squeeze(1).double() for b in _TEMPERATURES]
    given_Tn, rate_T1 = torch.stack(given), torch.full((len(_TEMPERATURES), 1), 0.1, dtype=torch.double)
    for _ in range(_STEPS):
        rate_T1 = wrong_share(given_Tn, rate_T1, classes).mean(1, keepdim=True)
    likelihood_Tn = (1 - rate_T1) * given_Tn + rate_T1 * (1 - given_Tn) / max(1, classes - 1)
    likelihood_T = likelihood_Tn.clamp_min(_TINY).log().mean(1)
    best = int(likelihood_T.argmax())
    return SymmetricFit(_TEMPERATURES[best], float(rate_T1[best]), float(likelihood_T[best]))


def symmetric_noise(predicted_NK: Tensor, labels_N: Tensor) -> NoiseModel:
    fitted = fit_symmetric(predicted_NK, labels_N)
    return NoiseModel(symmetric(fitted.rate, predicted_NK.shape[1]), fitted.temperature)


def class_noise(
    predicted_NK: Tensor, labels_N: Tensor, fold_N: Tensor, *, least_temperature: float = 1.0
) -> NoiseModel:
    """Class-dependent noise at the temperature of symmetric noise, at which V hardly absorbs confusions of the model.

    Where predictions were moved by a class-dependent V, labels look random to symmetric noise, and its temperature is
    too low; hence `least_temperature`.
    """
    temperature = max(least_temperature, fit_symmetric(predicted_NK, labels_N).temperature)
    q_NK = sharpened(predicted_NK, temperature)
    return NoiseModel(estimate_transition(q_NK, labels_N, fold_N, steps=10).matrix_KK, temperature)


def noise_of(predicted_NK: Tensor, labels_N: Tensor, fold_N: Tensor) -> NoiseModel:
    """Select and fit the noise model of out-of-sample predictions."""
    if prefers_classes(predicted_NK, labels_N, fold_N):
        return class_noise(predicted_NK, labels_N, fold_N)
    return symmetric_noise(predicted_NK, labels_N)


def prefers_classes(predicted_NK: Tensor, labels_N: Tensor, fold_N: Tensor) -> bool:
    """Whether held-out labels are clearly likelier under class-dependent noise than under symmetric noise.

    Predictions are not rescaled by a temperature.
    """
    classes = predicted_NK.shape[1]
    given_N = predicted_NK.gather(1, labels_N.unsqueeze(1)).squeeze(1)
    rate = 0.1
    for _ in range(_STEPS):
        rate = float(wrong_share(given_N, rate, classes).mean())
    symmetric_N = ((1 - rate) * given_N + rate * (1 - given_N) / max(1, classes - 1)).clamp_min(_TINY).log()
    gain_N = likeliest_transition(predicted_NK, labels_N, fold_N)[1] - symmetric_N
    standard_error = float(gain_N.std(correction=0)) / len(gain_N) ** 0.5
    return bool(gain_N.mean() > max(_LEAST_GAIN, _MARGIN * standard_error))


def mean_by_likelihood(first_NK: Tensor, second_NK: Tensor, labels_N: Tensor) -> Tensor:
    """The weighted mean of two predictions that maximises the likelihood of the labels under symmetric noise."""
    share = likeliest_share(first_NK, second_NK, labels_N)
    return share * first_NK + (1 - share) * second_NK


def likeliest_share(first_NK: Tensor, second_NK: Tensor, labels_N: Tensor) -> float:
    """The weight of the first of two predictions in that mean."""
    every = max(1, len(labels_N) // _COMPARED)

    def likelihood(share: float) -> float:
        mixed_nK = share * first_NK[::every] + (1 - share) * second_NK[::every]
        return fit_symmetric(mixed_nK, labels_N[::every]).likelihood

    return max(_SHARES, key=likelihood)


def mean_by_class_likelihood(first_NK: Tensor, second_NK: Tensor, labels_N: Tensor, fold_N: Tensor) -> Tensor:
    """The same under class-dependent noise, with held-out labels."""

    def likelihood(share: float) -> float:
        mixed_NK = share * first_NK + (1 - share) * second_NK
        return float(likeliest_transition(mixed_NK, labels_N, fold_N)[1].mean())

    share = max(_SHARES, key=likelihood)
    return share * first_NK + (1 - share) * second_NK


def mean_of(tables: Sequence[Tensor]) -> Tensor:
    return sum(tables[1:], tables[0]) / len(tables)
