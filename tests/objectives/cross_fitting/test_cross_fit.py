"""Self-adaptive training by folds: what it finds, and that no judge knows the label it judges."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from selfadapt.core.progress import no_progress
from selfadapt.core.rng import seeded
from selfadapt.data.splits import assign_folds
from selfadapt.evaluation.label_errors.recovery import average_precision
from selfadapt.models.linear.discriminant import FoldSums
from selfadapt.models.linear.softmax_regression import PrincipalAxes
from selfadapt.objectives.cross_fitting.cross_fit import cross_fit, deal_assignments
from selfadapt.objectives.cross_fitting.nested_heads import CrossFitting, NestedHeads, one_hot
from selfadapt.objectives.cross_fitting.transition import (
    estimate_transition,
    log_odds_wrong,
    posterior,
    shrunk,
    update_transition,
)


def _digits(rows: int = 900) -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(y), generator=seeded(0, "rows"))[:rows]
    return torch.from_numpy(x).float()[order], torch.from_numpy(y).long()[order]


def test_posterior_and_log_odds_wrong_are_bayes_rule() -> None:
    generator = np.random.default_rng(0)
    predicted = generator.dirichlet(np.ones(4), 20)
    matrix = generator.dirichlet(np.ones(4), 4)
    labels = generator.integers(4, size=20)
    expected = np.array([[predicted[i, k] * matrix[k, labels[i]] for k in range(4)] for i in range(20)])
    expected /= expected.sum(1, keepdims=True)
    given = torch.from_numpy(predicted).float(), torch.from_numpy(labels), torch.from_numpy(matrix).float()
    np.testing.assert_allclose(posterior(*given).numpy(), expected, rtol=1e-4)
    log_odds_N, alternative_N = log_odds_wrong(*given)
    right = expected[np.arange(20), labels]
    np.testing.assert_allclose(log_odds_N.numpy(), np.log((1 - right) / right), rtol=1e-3, atol=1e-4)
    for i in range(20):
        assert alternative_N[i] == max((k for k in range(4) if k != labels[i]), key=lambda k: expected[i, k])


def test_transition_is_found_where_predictions_are_right() -> None:
    generator = seeded(0, "transition")
    truth_N = torch.randint(4, (20_000,), generator=generator)
    matrix_KK = torch.tensor([[0.9, 0.1, 0, 0], [0, 0.7, 0.3, 0], [0, 0, 1.0, 0], [0.2, 0, 0, 0.8]])
    labels_N = torch.multinomial(matrix_KK[truth_N], 1, generator=generator).squeeze(1)
    predicted_NK = torch.full((20_000, 4), 0.01).scatter_(1, truth_N.unsqueeze(1), 0.97)
    fold_N = torch.arange(20_000) % 5
    found = estimate_transition(predicted_NK, labels_N, fold_N, steps=20)
    torch.testing.assert_close(found.matrix_KK, matrix_KK, atol=0.03, rtol=0)
    assert found.strength <= 100


def test_counts_without_a_pattern_are_shrunk_hard() -> None:
    generator = np.random.default_rng(0)
    even = np.full((5, 30, 30), 0.01) + np.eye(30) * 10
    patterned = even + np.roll(np.eye(30), 1, 1) * 3
    weak, strong = (
        shrunk(torch.from_numpy(generator.poisson(counts)).float()).strength for counts in (even, patterned)
    )
    assert weak >= 1000
    assert strong <= 30


def test_errors_that_follow_the_sample_leave_no_pattern_in_the_transition() -> None:
    """Labels drawn from a calibrated q: nothing says that a class is confused with one rather than another."""
    generator = seeded(0, "calibrated")
    predicted_NK = torch.randn(4000, 8, generator=generator).mul(1.5).softmax(1)
    labels_N = torch.multinomial(predicted_NK, 1, generator=generator).squeeze(1)
    found = estimate_transition(predicted_NK, labels_N, torch.arange(4000) % 5, steps=10)
    assert found.strength >= 1000
    assert found.matrix_KK.diagonal().min() > 0.9
    wrong_KK = found.matrix_KK[~torch.eye(8, dtype=torch.bool)]
    assert wrong_KK.max() < 2 * wrong_KK.min()


def test_confused_digits_are_found_and_undone() -> None:
    x, truth_N = _digits()
    labels_N = torch.where(torch.rand(len(truth_N), generator=seeded(1, "struck")) < 0.3, (truth_N + 1) % 10, truth_N)
    wrong_N = labels_N != truth_N
    fitted = cross_fit(x, labels_N, assign_folds(labels_N, 5, 0), 10, CrossFitting(rounds=4))
    log_odds_N, _ = log_odds_wrong(fitted.predicted_NK, labels_N, fitted.noise.matrix_KK)
    plain_N = -fitted.plain_NK.gather(1, labels_N.unsqueeze(1)).squeeze(1)
    ours, plain = (
        average_precision(values_N.argsort(descending=True), wrong_N) or 0.0 for values_N in (log_odds_N, plain_N)
    )
    assert ours > 0.95
    assert ours > plain + 0.1
    fresh_NF, fresh_N = (part[900:] for part in _digits(1797))
    plain_right = ((fitted.axes(fresh_NF) @ fitted.plain_head_DK).argmax(1) == fresh_N).float().mean()
    assert (fitted.predict(fresh_NF).argmax(1) == fresh_N).float().mean() > plain_right + 0.05


def test_a_judge_answers_the_same_whatever_the_label_that_it_judges() -> None:
    """At a fixed decay and shrinkage: those that would be chosen depend a little on all labels."""
    x, labels_N = _digits(300)
    fold_N = assign_folds(labels_N, 3, 0)
    other_N = torch.where(fold_N == 1, labels_N[torch.randperm(300, generator=seeded(2, "labels"))], labels_N)
    assert bool((other_N != labels_N).any())
    settings, axes, rows = CrossFitting(rounds=3, decay=1e-3), PrincipalAxes.of(x), fold_N == 1
    sums = FoldSums.of(axes(x)[:, :-1], fold_N)
    heads, plain, moved = [], [], []
    for given_N in (labels_N, other_N):
        own = NestedHeads(x, given_N, fold_N, 10, settings, axes).moved(update_transition, no_progress)
        heads.append(own.predicted_NK)
        plain.append(sums.held_out_scores(one_hot(given_N, 10).unsqueeze(1), [0.3])[0.3])
        moved.append(sums.held_out_scores(own.targets_NFK, [0.3])[0.3])
    for one_NK, other_NK in (heads, plain, moved):
        torch.testing.assert_close(one_NK[rows], other_NK[rows], atol=1e-3, rtol=1e-4)
        assert (one_NK[~rows] - other_NK[~rows]).abs().max() > 0.05


def test_folds_follow_the_content_not_the_order_nor_the_names() -> None:
    x, labels_N = _digits(300)
    fold_RN = deal_assignments(x, labels_N, 3)
    order_N, names_K = (torch.randperm(count, generator=seeded(4, "order")) for count in (300, 10))
    assert torch.equal(deal_assignments(x[order_N], labels_N[order_N], 3), fold_RN[:, order_N])
    assert torch.equal(deal_assignments(x, names_K[labels_N], 3), fold_RN)
    assert not torch.equal(deal_assignments(x, labels_N, 4), fold_RN)
    assert not torch.equal(fold_RN[0], fold_RN[1])


def test_on_labels_of_pure_noise_agreement_is_chance() -> None:
    generator = seeded(3, "noise")
    x = torch.randn(3000, 20, generator=generator)
    labels_N = torch.arange(3000)[torch.randperm(3000, generator=generator)] % 5
    fitted = cross_fit(x, labels_N, assign_folds(labels_N, 5, 0), 5)
    agreement = (fitted.predicted_NK.argmax(1) == labels_N).double().mean().item()
    assert abs(agreement - 0.2) < 3 * (0.2 * 0.8 / 3000) ** 0.5


def test_same_input_same_bits() -> None:
    x, labels_N = _digits(300)
    fold_N = assign_folds(labels_N, 5, 0)
    one, other = (cross_fit(x, labels_N, fold_N, 10, CrossFitting(rounds=2)) for _ in range(2))
    assert torch.equal(one.predicted_NK, other.predicted_NK)
    assert torch.equal(one.head_DK, other.head_DK)


@pytest.mark.parametrize(
    ("samples", "classes", "width", "seed"), [(50, 2, 200, 0), (100, 2, 200, 1), (300, 10, 1280, 0)]
)
def test_clean_classes_that_are_far_apart_stay_as_they_are(samples: int, classes: int, width: int, seed: int) -> None:
    """Fewer samples than features, and almost no decay: heads must not fit their noise on the way."""
    generator = seeded(seed, "clusters")
    labels_N = torch.randint(classes, (samples,), generator=generator)
    centre_KF = torch.randn(classes, width, generator=generator) * 14 / width**0.5
    features_NF = centre_KF[labels_N] + torch.randn(samples, width, generator=generator)
    fitted = cross_fit(features_NF, labels_N, assign_folds(labels_N, 5, seed), classes)
    assert fitted.predicted_NK.argmax(1).eq(labels_N).all()
    assert fitted.predicted_NK is not fitted.plain_NK
    assert fitted.noise.matrix_KK.diagonal().min() > 0.99
    assert fitted.predict(features_NF).argmax(1).eq(labels_N).all()


def test_targets_that_drift_from_their_few_labels_are_given_up() -> None:
    """Ten classes of two samples: nested folds leave some classes without any."""
    generator = seeded(0, "drift")
    labels_N = torch.arange(10).repeat(2)
    features_NF = torch.randn(10, 2, generator=generator)[labels_N] * 6 + torch.randn(20, 2, generator=generator)
    fitted = cross_fit(features_NF, labels_N, assign_folds(labels_N, 5, 0), 10)
    agreement = [own_NK.argmax(1).eq(labels_N).float().mean() for own_NK in (fitted.plain_NK, fitted.predicted_NK)]
    assert agreement[1] >= 0.85 * agreement[0]
    assert fitted.noise.matrix_KK.argmax(1).eq(torch.arange(10)).all()
