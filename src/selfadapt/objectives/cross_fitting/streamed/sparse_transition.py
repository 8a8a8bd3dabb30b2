"""The noise transition matrix V[k, j] = P(given j | true k) from sparse predictions: counts of few pairs, and a prior.

The algorithm is that of transition.py. Only the pairs (k, j) with k among the three likeliest classes of at least two
samples with the label j have counts; all others have the probability of the prior, symmetric noise. V is estimated on
at most 100,000 samples, evenly spaced.

Shapes: n samples, M classes of a row, F folds, P pairs, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from selfadapt.objectives.cross_fitting.streamed.sparse_predictions import SparseRows
from selfadapt.objectives.cross_fitting.transition import (
    CAUTIOUS_STRENGTHS,
    CONFIDENCE_POWER,
    RATES,
    STRENGTHS,
    most_shrunk,
    wrong_share,
)

_CANDIDATES = 3  # of the other classes of a row
_LEAST_SAMPLES = 2  # of a pair
_STEPS = 10
_RATE_STEPS = 40
_START_RATE = 0.1
_ROWS = 16_384
_TINY = 1e-30


@dataclass(frozen=True)
class SparseTransition:
    """V[k, j]: `extra_P` more than `base_K[k]` for the pairs, sorted by j K + k; and its diagonal."""

    base_K: Tensor
    diagonal_K: Tensor
    keys_P: Tensor
    extra_P: Tensor

    @classmethod
    def symmetric(cls, rate: float, num_classes: int) -> "SparseTransition":
        ones_K = torch.ones(num_classes)
        none = torch.empty(0, dtype=torch.int64)
        return cls(ones_K * rate / max(1, num_classes - 1), ones_K * (1 - rate), none, torch.empty(0))

    def of_rows(self, rows: SparseRows) -> Tensor:
        """P(label | class) for the classes of each row (n×M)."""
        return self._lookup(rows, _places(self.keys_P, rows))

    def _lookup(self, rows: SparseRows, place_nM: Tensor) -> Tensor:
        extra_P1 = torch.cat((self.extra_P, torch.zeros(1)))
        value_nM = self.base_K[rows.class_nM] + extra_P1[place_nM]
        value_nM[:, 0] = self.diagonal_K[rows.labels_n]
        return value_nM

    def matrix(self) -> Tensor:
        matrix_KK = self.base_K.unsqueeze(1).repeat(1, len(self.base_K))
        label_P, class_P = self.keys_P // len(self.base_K), self.keys_P % len(self.base_K)
        matrix_KK[class_P, label_P] += self.extra_P
        matrix_KK.diagonal().copy_(self.diagonal_K)
        return matrix_KK


@dataclass(frozen=True)
class SparseNoise:
    """P(given j | true k), and the temperature of the predictions."""

    transition: SparseTransition
    temperature: float


def estimate_sparse_transition(rows: SparseRows, fold_n: Tensor) -> SparseTransition:
    """V with the largest strength that explains held-out labels within two standard errors of the best."""
    return most_shrunk(_tried(rows, fold_n, CAUTIOUS_STRENGTHS))


def gain_of_classes(rows: SparseRows, fold_n: Tensor) -> tuple[float, float]:
    """How much likelier held-out labels are under class-dependent than under symmetric noise: mean, standard error."""
    given_n, rate = rows.value_nM[:, 0], _START_RATE
    for _ in range(_RATE_STEPS):
        rate = float(wrong_share(given_n, rate, rows.num_classes).mean())
    symmetric_n = (1 - rate) * given_n + rate * (1 - given_n) / max(1, rows.num_classes - 1)
    likelihoods = [likelihood_n for _, likelihood_n in _tried(rows, fold_n, STRENGTHS)]
    gain_n = max(likelihoods, key=lambda own_n: float(own_n.mean())) - symmetric_n.clamp_min(_TINY).log()
    return float(gain_n.mean()), float(gain_n.std(correction=0)) / len(gain_n) ** 0.5


def _tried(rows: SparseRows, fold_n: Tensor, strengths: Sequence[float]) -> list[tuple[SparseTransition, Tensor]]:
    counts = _Counts(rows, fold_n)
    return [counts.expectation_maximisation(strength) for strength in strengths]


class _Counts:
    """C of transition.py for each fold: the diagonal, the pairs, and the sum over labels."""

    def __init__(self, rows: SparseRows, fold_n: Tensor) -> None:
        self.rows, self.fold_n, self.folds = rows, fold_n.long(), int(fold_n.max()) + 1
        candidates = _keys(rows)[:, 1 : 1 + _CANDIDATES]
        keys, samples = candidates.unique(return_counts=True)
        self.keys_P = keys[samples >= _LEAST_SAMPLES]
        self.place_nM = _places(self.keys_P, rows).int()

    def expectation_maximisation(self, strength: float) -> tuple[SparseTransition, Tensor]:
        """V at this strength, and the log-likelihood of each label under the V of the other folds."""
        transition = SparseTransition.symmetric(_START_RATE, self.rows.num_classes)
        transition = SparseTransition(
            transition.base_K, transition.diagonal_K, self.keys_P, torch.zeros(len(self.keys_P))
        )
        for _ in range(_STEPS):
            counts = self._expected(transition)
            transition = self._shrunk([values.sum(0) for values in counts], strength)
        likelihood_n = torch.empty(len(self.fold_n))
        for fold in range(self.folds):
            others = self._shrunk([(values.sum(0) - values[fold]).clamp_min(0) for values in counts], strength)
            for index_n in (self.fold_n == fold).nonzero().flatten().split(_ROWS):
                own = self.rows[index_n]
                probability_n = (own.value_nM * others._lookup(own, self.place_nM[index_n])).sum(1)
                likelihood_n[index_n] = probability_n.clamp_min(_TINY).log()
        return transition, likelihood_n

    def _expected(self, transition: SparseTransition) -> list[Tensor]:
        classes, pairs = self.rows.num_classes, len(self.keys_P)
        diagonal_FK, total_FK = torch.zeros(2, self.folds, classes).double()
        pair_FP = torch.zeros(self.folds, pairs + 1).double()
        for start in range(0, len(self.fold_n), _ROWS):
            chunk = slice(start, start + _ROWS)
            own, place_nM, fold_n = self.rows[chunk], self.place_nM[chunk], self.fold_n[chunk]
            posterior_nM = own.value_nM * transition._lookup(own, place_nM)
            posterior_nM /= posterior_nM.sum(1, keepdim=True).clamp_min(_TINY)
            weighted_nM = (posterior_nM * own.value_nM.amax(1, keepdim=True) ** CONFIDENCE_POWER).double()
            fold_n1 = fold_n.unsqueeze(1)
            diagonal_FK.view(-1).index_add_(0, fold_n * classes + own.labels_n, weighted_nM[:, 0])
            total_FK.view(-1).index_add_(0, (fold_n1 * classes + own.class_nM).flatten(), weighted_nM.flatten())
            place_nm = fold_n1 * (pairs + 1) + place_nM[:, 1:]
            pair_FP.view(-1).index_add_(0, place_nm.flatten(), weighted_nM[:, 1:].flatten())
        return [diagonal_FK, pair_FP[:, :-1], total_FK]

    def _shrunk(self, counts: list[Tensor], strength: float) -> SparseTransition:
        diagonal_K, pair_P, total_K = counts
        classes = len(total_K)
        right = float(diagonal_K.sum() / total_K.sum().clamp_min(1e-12))
        right = min(max(right, 1 - RATES[1]), 1 - RATES[0])
        divisor_K = total_K + strength
        return SparseTransition(
            (strength * (1 - right) / max(1, classes - 1) / divisor_K).float(),
            ((diagonal_K + strength * right) / divisor_K).float(),
            self.keys_P,
            (pair_P / divisor_K[self.keys_P % classes]).float(),
        )


def _keys(rows: SparseRows) -> Tensor:
    return rows.labels_n.unsqueeze(1) * rows.num_classes + rows.class_nM


def _places(keys_P: Tensor, rows: SparseRows) -> Tensor:
    """The place of each class of each row among the pairs, or the number of pairs if it is not one of them."""
    if not len(keys_P):
        return torch.zeros_like(rows.class_nM)
    keys_nM = _keys(rows)
    place_nM = torch.searchsorted(keys_P, keys_nM).clamp_max(len(keys_P) - 1)
    return torch.where(keys_P[place_nM] == keys_nM, place_nM, len(keys_P))
