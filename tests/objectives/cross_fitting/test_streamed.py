"""Streamed cross-fitting against what it replaces: dense tables of the same predictions, sums, and transitions."""

import numpy as np
import pytest
import torch
from torch import Tensor

from selfadapt.core.rng import seeded
from selfadapt.data.shards.feature_shards import FeatureShards
from selfadapt.data.shards.id_order import folds_by_hash, id_hashes
from selfadapt.data.shards.passes import Passes
from selfadapt.data.shards.scan import scan
from selfadapt.evaluation.label_errors.out_of_sample import judge_out_of_sample
from selfadapt.evaluation.label_errors.streamed_report import judge_streamed
from selfadapt.models.linear.discriminant import Discriminant
from selfadapt.models.linear.fold_moments import FoldMoments, scores
from selfadapt.objectives.cross_fitting.nested_heads import one_hot
from selfadapt.objectives.cross_fitting.streamed.sparse_predictions import SparsePredictions, SparseRows
from selfadapt.objectives.cross_fitting.streamed.sparse_transition import (
    SparseNoise,
    SparseTransition,
    estimate_sparse_transition,
    gain_of_classes,
)
from selfadapt.objectives.cross_fitting.streamed.streamed_fit import StreamedFit
from selfadapt.objectives.cross_fitting.transition import estimate_transition, likeliest_transition, symmetric


def _data(samples: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = seeded(seed, "streamed")
    labels_N = torch.randint(classes, (samples,), generator=generator)
    means_KF = torch.randn(classes, 6, generator=generator)
    return means_KF[labels_N] + torch.randn(samples, 6, generator=generator) * torch.arange(1, 7), labels_N


def _predictions(samples: int, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Out-of-sample predictions, labels that are often the next class, and folds."""
    generator = seeded(1, "predictions")
    truth_N = torch.randint(classes, (samples,), generator=generator)
    logits_NK = torch.randn(samples, classes, generator=generator)
    predicted_NK = (logits_NK + 3 * torch.eye(classes)[truth_N]).softmax(1)
    wrong_N = torch.rand(samples, generator=generator) < 0.3
    labels_N = torch.where(wrong_N, (truth_N + 1) % classes, truth_N)
    return predicted_NK, labels_N, torch.randint(5, (samples,), generator=generator)


def test_scan_gives_the_moments_of_all_rows_and_equal_hashes_for_equal_rows() -> None:
    features_NF = _data(700, 3)[0] + 1000
    features_NF[650] = features_NF[20]
    features_NF[3, 0], features_NF[4] = 0.0, features_NF[3]
    features_NF[4, 0] = -0.0
    found = scan(Passes.over(FeatureShards.of(features_NF), 10**5))  # blocks of 256 rows
    exact = features_NF.double().numpy()
    np.testing.assert_allclose(found.mean_F, exact.mean(0), rtol=1e-6)
    np.testing.assert_allclose(found.std_F, exact.std(0), rtol=1e-6)
    np.testing.assert_array_equal(found.largest_F, abs(exact).max(0))
    assert found.content_N[650] == found.content_N[20]
    assert found.content_N[3] == found.content_N[4]
    assert len(found.content_N.unique()) == 698


def test_rows_that_are_not_finite_are_counted_and_the_first_is_named() -> None:
    features_NF = _data(700, 3)[0]
    features_NF[[300, 301, 690], 2] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    with pytest.raises(ValueError, match="in 3 rows, first in row 300; correct them"):
        scan(Passes.over(FeatureShards.of(features_NF), 10**5))
    parts = FeatureShards.of(iter(np.split(features_NF.numpy(), [100, 250])))
    with pytest.raises(ValueError, match=r"in 3 rows, first in row 50 of .*00002\.npz"):
        scan(Passes.over(parts, 10**5))


def test_folds_share_each_class_evenly_and_follow_ids_not_positions() -> None:
    labels_N = torch.arange(103) % 4
    hash_N = id_hashes(map(str, range(103)), 103, seed=3)
    group_N = torch.arange(103)
    group_N[[50, 60, 70]] = 7
    fold_N = folds_by_hash(hash_N, labels_N, group_N, 5)
    assert len(fold_N[[7, 50, 60, 70]].unique()) == 1
    alone_N = torch.arange(103) == group_N
    for label in range(4):
        sizes = torch.bincount(fold_N[alone_N & (labels_N == label)], minlength=5)
        assert sizes.max() - sizes.min() <= 1
    other = torch.randperm(103, generator=seeded(0, "order"))
    alone = torch.arange(103)
    moved_N = folds_by_hash(hash_N[other], labels_N[other], alone, 5)
    np.testing.assert_array_equal(moved_N, folds_by_hash(hash_N, labels_N, alone, 5)[other])


@pytest.mark.numerical
def test_heads_from_sums_are_the_discriminants_of_the_other_folds() -> None:
    features_NF, labels_N = _data(400, 4)
    fold_N = torch.arange(400) % 5
    moments = FoldMoments.zero(5, 4, 6)
    for rows in torch.arange(400).split(77):
        moments.add(features_NF[rows], labels_N[rows], fold_N[rows])
    soft = FoldMoments.zero(5, 4, 6)
    soft.add(features_NF, one_hot(labels_N, 4).float(), fold_N)
    for name in ("counts_FK", "sums_FKD", "gram_FDD"):
        np.testing.assert_allclose(getattr(soft, name), getattr(moments, name), rtol=1e-5, atol=1e-3, err_msg=name)
    without = moments.discriminant_without([1, 3])
    others = (fold_N != 1) & (fold_N != 3)
    x, y = features_NF[others].double().numpy(), labels_N[others].numpy()
    means = np.stack([x[y == k].mean(0) for k in range(4)])
    within = sum((x[y == k] - means[k]).T @ (x[y == k] - means[k]) for k in range(4)) / len(x)
    shrunk = 0.7 * within + 0.3 * np.trace(within) / 6 * np.eye(6)
    slopes = np.linalg.solve(shrunk, means.T)
    bias = np.log(np.bincount(y) / len(y)) - 0.5 * (means.T * slopes).sum(0)
    expected = features_NF.double().numpy() @ slopes + bias
    np.testing.assert_allclose(scores(features_NF, without.head(0.3)), expected, atol=1e-4)
    # and of the implementation that holds all samples
    square_D, turn_DD = torch.linalg.eigh(torch.from_numpy(x.T @ x))
    sums_KD = torch.from_numpy(means * np.bincount(y)[:, None])
    whole = Discriminant.of(turn_DD, square_D, sums_KD, torch.bincount(torch.from_numpy(y)).double())
    np.testing.assert_allclose(whole.scores(features_NF, [0.3])[0], expected, atol=1e-4)


def test_sharpened_rows_are_those_of_the_dense_table() -> None:
    predicted_NK, labels_N, _ = _predictions(200, 40)
    rows = SparseRows.of(predicted_NK, labels_N, torch.arange(200))
    assert rows.value_nM.shape == (200, 17)
    np.testing.assert_array_equal(rows.class_nM[:, 0], labels_N)
    np.testing.assert_allclose(rows.value_nM.sum(1) + rows.rest_n, 1, atol=1e-6)
    dense_NK = (predicted_NK.log() * 2).softmax(1)
    sharp = rows.sharpened(2.0)
    np.testing.assert_allclose(sharp.value_nM, dense_NK.gather(1, rows.class_nM), atol=0.01)
    np.testing.assert_allclose(sharp.entropy(), -(dense_NK * dense_NK.log()).sum(1), atol=0.1)


@pytest.mark.numerical
def test_transition_of_few_classes_is_the_dense_one() -> None:
    predicted_NK, labels_N, fold_N = _predictions(3000, 4)
    rows = SparseRows.of(predicted_NK, labels_N, torch.arange(3000))
    dense_KK = estimate_transition(predicted_NK, labels_N, fold_N, steps=10).matrix_KK
    found = estimate_sparse_transition(rows, fold_N)
    np.testing.assert_allclose(found.matrix(), dense_KK, atol=1e-4)
    np.testing.assert_allclose(found.of_rows(rows), dense_KK[rows.class_nM, labels_N[:, None]], atol=1e-4)
    gain, _ = gain_of_classes(rows, fold_N)
    class_N = likeliest_transition(predicted_NK, labels_N, fold_N)[1]
    given_N, rates = predicted_NK.gather(1, labels_N[:, None]).squeeze(1).double(), torch.linspace(0.01, 0.6, 500)
    symmetric_R = torch.stack([((1 - e) * given_N + e * (1 - given_N) / 3).log().mean() for e in rates])
    assert gain == pytest.approx(float(class_N.double().mean() - symmetric_R.max()), abs=2e-4)


@pytest.mark.numerical
@pytest.mark.parametrize(("classes", "rate"), [(2, 0.2), (3, None), (12, None), (12, 0.001)])
def test_verdicts_are_those_on_the_dense_table(classes: int, rate: float | None) -> None:
    """With an estimated V or a symmetric one. So low a rate leaves most errors to those of confusable classes."""
    predicted_NK, labels_N, fold_N = _predictions(1500, classes)
    if rate is not None:
        matrix_KK = symmetric(rate, classes)
        transition = SparseTransition.symmetric(rate, classes)
    else:
        rows = SparseRows.of(predicted_NK, labels_N, torch.arange(1500))
        transition = estimate_sparse_transition(rows, fold_N)
        matrix_KK = transition.matrix()
    duplicates = [(3, 700), (5, 6, 1400), (20, 21)]
    passes = Passes.over(FeatureShards.of(torch.zeros(1500, 1)), 30_000)  # blocks of 279
    if rate == 0.001:
        labels_N = predicted_NK.multinomial(1, generator=seeded(0, "labels")).squeeze(1)
    predictions = SparsePredictions(passes, classes)
    for block, _ in passes.blocks("test"):
        predictions.put(block, predicted_NK[block], labels_N[block])
    fit = StreamedFit(predictions, SparseNoise(transition, 1.0), torch.rand(1500))
    unjudged_K = torch.arange(classes) == (classes - 1 if classes > 3 else -1)
    found = judge_streamed(fit, labels_N, duplicates, unjudged_K)
    dense = judge_out_of_sample(predicted_NK, labels_N, matrix_KK, duplicates, unjudged_K=unjudged_K)
    assert dense.is_error.any()
    for name in ("p_wrong", "confidence", "sample_weight", "rank_score"):
        np.testing.assert_allclose(getattr(found, name), getattr(dense, name), atol=1e-4, err_msg=name)
    for name in ("is_error", "suggested_codes", "runner_up_codes", "duplicate_group", "in_conflict", "too_few"):
        np.testing.assert_array_equal(getattr(found, name), getattr(dense, name), err_msg=name)
    assert found.quality.noise_rate.value == pytest.approx(dense.quality.noise_rate.value, abs=1e-5)
    assert found.quality.noise_rate.high == pytest.approx(dense.quality.noise_rate.high, abs=1e-3)
