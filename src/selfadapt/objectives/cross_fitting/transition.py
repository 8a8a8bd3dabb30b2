"""The noise transition matrix V[k, j] = P(given label j | true class k), estimated without true labels.

    r_ik ∝ q_ik V[k, y_i]                                       the posterior of the true class
    C[k, j] = sum over i with y_i = j of (max_k q_ik)^4 r_ik    confident predictions count more
    V[k, j] = (C[k, j] + s B[k, j]) / (sum_j C[k, j] + s)       B: symmetric noise of the same rate

Repeating the three lines is an EM algorithm. q must be out-of-sample predictions. The strength s of the shrinkage is
selected in one of two ways.

While targets are updated (`update_transition`), each step selects s by the likelihood of each fold's counts C under the
V of the other folds. C depends on V, so patterns reinforce themselves. This is intended: a weak pattern can grow while
q still predicts the labels with all their errors.

For P(wrong) (`estimate_transition`), a spurious pattern would harm the ranking. EM runs once for each s, and s is
selected by the likelihood of each fold's labels under the V of the other folds,

    sum_i log sum_k q_ik V[k, y_i]

The largest s within two standard errors of the best is used, from 30 on: V also corrects systematic confusions of the
model, which makes labels likelier, too, and with less shrinkage counts these as label noise.

Shapes: N samples, K classes, F folds.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from selfadapt.models.linear.softmax_regression import pieces_of

STRENGTHS = (3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0, 10_000.0)
CAUTIOUS_STRENGTHS = STRENGTHS[2:]  # for P(wrong)
Estimate = TypeVar("Estimate")
_STANDARD_ERRORS = 2.0  # by which less shrinkage must be better
_CHUNK = 16_384
CONFIDENCE_POWER = 4
_START_RATE = 0.1
_FEW_STEPS = 4
RATES = (1e-4, 1 - 1e-4)
_TINY = 1e-30


@dataclass(frozen=True)
class Transition:
    matrix_KK: Tensor
    strength: float  # s

    @classmethod
    def at_first(cls, num_classes: int) -> "Transition":
        return cls(symmetric(_START_RATE, num_classes), STRENGTHS[-1])


def posterior(predicted_NK: Tensor, labels_N: Tensor, matrix_KK: Tensor) -> Tensor:
    """r: the posterior of the true class given the prediction and the label."""
    rows_NK = predicted_NK * matrix_KK.T[labels_N]
    return rows_NK / rows_NK.sum(1, keepdim=True).clamp_min(_TINY)


UpdateTransition = Callable[[Tensor, Tensor, Tensor, Transition], Transition]  # (predictions, labels, folds, current V)


def update_transition(predicted_NK: Tensor, labels_N: Tensor, fold_N: Tensor, start: Transition) -> Transition:
    """Update V by a few EM steps from `start`, each with the strength selected on the counts."""
    transition = start
    for _ in range(_FEW_STEPS):
        transition = shrunk(_counts(predicted_NK, labels_N, fold_N, transition.matrix_KK))
    return transition


def update_symmetric(predicted_NK: Tensor, labels_N: Tensor, _: Tensor, start: Transition) -> Transition:
    """The same for symmetric noise: update the rate by a few EM steps."""
    classes = predicted_NK.shape[1]
    given_N = predicted_NK.gather(1, labels_N.unsqueeze(1)).squeeze(1)
    rate = float(1 - start.matrix_KK[0, 0])
    for _step in range(_FEW_STEPS):
        rate = float(wrong_share(given_N, rate, classes).mean())
    return Transition(symmetric(rate, classes), STRENGTHS[-1])


def wrong_share(given_N: Tensor, rate: float | Tensor, num_classes: int) -> Tensor:
    """P(wrong) under symmetric noise, where `given_N` is the predicted probability of the label."""
    wrong_N = rate * (1 - given_N) / max(1, num_classes - 1)
    return wrong_N / ((1 - rate) * given_N + wrong_N).clamp_min(_TINY)


def shrunk(counts_FKK: Tensor) -> Transition:
    """V from the counts C of each fold, with the strength selected by cross-validation over folds."""
    whole_KK = counts_FKK.sum(0)
    others_FKK = (whole_KK - counts_FKK).clamp_min(0)
    tried_S111 = torch.tensor(STRENGTHS, dtype=counts_FKK.dtype).view(-1, 1, 1, 1)
    likelihood_S = (counts_FKK * _towards_symmetric(others_FKK, tried_S111).log()).sum((1, 2, 3))
    strength = STRENGTHS[int(likelihood_S.argmax())]
    return Transition(_towards_symmetric(whole_KK, strength), strength)


def estimate_transition(predicted_NK: Tensor, labels_N: Tensor, fold_N: Tensor, *, steps: int) -> Transition:
    """V after `steps` EM steps, with the strength selected on held-out labels."""
    return most_shrunk([_em(predicted_NK, labels_N, fold_N, strength, steps) for strength in CAUTIOUS_STRENGTHS])


def most_shrunk(tried: Sequence[tuple[Estimate, Tensor]]) -> Estimate:
    """The strongest shrinkage whose held-out log-likelihoods are within two standard errors of the best.

    `tried` are estimates and the log-likelihood of each label, the weakest shrinkage first.
    """
    best = max(range(len(tried)), key=lambda index: float(tried[index][1].mean()))
    for index in reversed(range(best, len(tried))):
        loss_N = tried[best][1] - tried[index][1]
        if float(loss_N.mean()) <= _STANDARD_ERRORS * float(loss_N.std(correction=0)) / len(loss_N) ** 0.5:
            return tried[index][0]
    return tried[best][0]


def likeliest_transition(
    predicted_NK: Tensor, labels_N: Tensor, fold_N: Tensor, *, steps: int = 10
) -> tuple[Transition, Tensor]:
    """V at the strength that maximises the likelihood of held-out labels, and the log-likelihood of each."""
    tried = [_em(predicted_NK, labels_N, fold_N, strength, steps) for strength in STRENGTHS]
    return max(tried, key=lambda found: float(found[1].mean()))


def _em(
    predicted_NK: Tensor, labels_N: Tensor, fold_N: Tensor, strength: float, steps: int
) -> tuple[Transition, Tensor]:
    """V at this strength, and the log-likelihood of each label under the V of the other folds."""
    matrix_KK = symmetric(_START_RATE, predicted_NK.shape[1])
    for _ in range(steps):
        counts_FKK = _counts(predicted_NK, labels_N, fold_N, matrix_KK)
        matrix_KK = _towards_symmetric(counts_FKK.sum(0), strength)
    whole_KK = counts_FKK.sum(0)
    likelihood_N = torch.empty(len(labels_N))
    for fold, fold_KK in enumerate(counts_FKK):
        rows = (fold_N == fold).nonzero().flatten()
        others_KK = _towards_symmetric((whole_KK - fold_KK).clamp_min(0), strength)
        for rows_n in rows.split(_CHUNK):
            probability_n = (predicted_NK[rows_n] * others_KK.T[labels_N[rows_n]]).sum(1)
            likelihood_N[rows_n] = probability_n.clamp_min(_TINY).log()
    return Transition(matrix_KK, strength), likelihood_N


def _counts(predicted_NK: Tensor, labels_N: Tensor, fold_N: Tensor, matrix_KK: Tensor) -> Tensor:
    """C of each fold: F×K×K."""
    classes, folds = predicted_NK.shape[1], int(fold_N.max()) + 1
    counts = torch.zeros(folds * classes, classes)
    for piece in pieces_of(len(labels_N), classes):
        rows_nK = posterior(predicted_NK[piece], labels_N[piece], matrix_KK)
        rows_nK *= predicted_NK[piece].amax(1, keepdim=True) ** CONFIDENCE_POWER
        counts.index_add_(0, fold_N[piece] * classes + labels_N[piece], rows_nK)
    return counts.view(folds, classes, classes).transpose(1, 2)


def _towards_symmetric(counts_XKK: Tensor, strength: float | Tensor) -> Tensor:
    """V from counts, shrunk towards symmetric noise. Leading dimensions are batch dimensions."""
    classes = counts_XKK.shape[-1]
    right_X11 = counts_XKK.diagonal(dim1=-2, dim2=-1).sum(-1) / counts_XKK.sum((-2, -1)).clamp_min(1e-12)
    right_X11 = right_X11.clamp(1 - RATES[1], 1 - RATES[0])[..., None, None]
    prior_XKK = torch.where(torch.eye(classes, dtype=torch.bool), right_X11, (1 - right_X11) / max(1, classes - 1))
    return (counts_XKK + strength * prior_XKK) / (counts_XKK.sum(-1, keepdim=True) + strength)


def symmetric(rate: float, num_classes: int) -> Tensor:
    """V of symmetric noise."""
    rate = min(max(rate, RATES[0]), RATES[1])
    return torch.full((num_classes, num_classes), rate / max(1, num_classes - 1)).fill_diagonal_(1 - rate)


def posterior_pieces(predicted_NK: Tensor, labels_N: Tensor, matrix_KK: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield the posterior in chunks, for tables too large to hold twice."""
    for piece in pieces_of(len(labels_N), predicted_NK.shape[1]):
        yield piece, posterior(predicted_NK[piece], labels_N[piece], matrix_KK)


def log_odds_wrong(predicted_NK: Tensor, labels_N: Tensor, matrix_KK: Tensor) -> tuple[Tensor, Tensor]:
    """log(P(wrong) / P(right)) of each label, and the likeliest class other than the label.

    The first is

    log  sum over k other than y of q_k V[k, y]  -  log q_y V[y, y]
    """
    log_odds_N, alternative_N = torch.empty(len(labels_N)), torch.empty_like(labels_N)
    for piece in pieces_of(len(labels_N), predicted_NK.shape[1]):
        given_n1 = labels_N[piece].unsqueeze(1)
        rows_nK = predicted_NK[piece] * matrix_KK.T[labels_N[piece]]
        right_n = rows_nK.gather(1, given_n1).squeeze(1)
        others_nK = rows_nK.scatter(1, given_n1, 0.0)
        log_odds_N[piece] = others_nK.sum(1).clamp_min(_TINY).log() - right_n.clamp_min(_TINY).log()
        alternative_N[piece] = others_nK.scatter(1, given_n1, -1.0).argmax(1)
    return log_odds_N, alternative_N
