"""The closed-form discriminant against scikit-learn's, and the sums of folds against sums without them."""

import numpy as np
import torch
from sklearn.datasets import load_wine
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from selfadapt.core.rng import seeded
from selfadapt.models.linear.discriminant import Discriminant, FoldSums, held_out_discriminant
from selfadapt.models.linear.fold_moments import scores
from selfadapt.models.linear.kernel_axes import KernelAxes
from selfadapt.objectives.cross_fitting.nested_heads import one_hot


def _wine() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x, y = load_wine(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    fold_N = torch.arange(len(y)) % 5
    return torch.from_numpy(x).float(), torch.from_numpy(y), fold_N


def test_held_out_scores_are_those_of_scikit_learn() -> None:
    x, labels_N, fold_N = _wine()
    scores_NK = FoldSums.of(x, fold_N).held_out_scores(one_hot(labels_N, 3).unsqueeze(1), [0.3])[0.3]
    for fold in range(5):
        seen, rows = (fold_N != fold).numpy(), fold_N == fold
        own = x[seen] - torch.stack([x[seen][labels_N[seen] == k].mean(0) for k in range(3)])[labels_N[seen]]
        covariance = (own.T @ own / seen.sum()).double().numpy()
        shrunk = 0.7 * covariance + 0.3 * np.trace(covariance) / 13 * np.eye(13)
        oracle = LinearDiscriminantAnalysis(solver="lsqr", covariance_estimator=_Fixed(shrunk))
        oracle.fit(x[seen].double().numpy(), labels_N[seen].numpy())
        expected = oracle.decision_function(x[rows].double().numpy())
        np.testing.assert_allclose(scores_NK[rows].numpy(), expected, rtol=1e-3, atol=1e-3)


class _Fixed:
    """A covariance for scikit-learn's discriminant, which averages it over classes."""

    def __init__(self, covariance: "np.ndarray[tuple[int, int], np.dtype[np.float64]]") -> None:
        self.covariance_ = covariance

    def fit(self, _: object) -> "_Fixed":
        return self


def test_one_table_for_each_fold_counts_no_sample_of_that_fold() -> None:
    x, labels_N, fold_N = _wine()
    table_NK = one_hot(labels_N, 3).float()
    tables_NFK = table_NK.unsqueeze(1).repeat(1, 5, 1)
    tables_NFK[torch.arange(len(x)), fold_N] = 0
    sums = FoldSums.of(x, fold_N)
    shared, separate = (sums.held_out_scores(own, [0.1])[0.1] for own in (table_NK.unsqueeze(1), tables_NFK))
    torch.testing.assert_close(shared, separate, rtol=1e-4, atol=1e-4)


def test_soft_targets_share_a_sample_among_classes() -> None:
    x, _, _ = _wine()
    generator = seeded(0, "soft")
    targets_NK = torch.rand(len(x), 3, generator=generator).softmax(1).double()
    square_D, turn_DD = torch.linalg.eigh((x.T @ x).double())
    found = Discriminant.of(turn_DD, square_D, targets_NK.T @ x.double(), targets_NK.sum(0))
    means = (targets_NK.T @ x.double()) / targets_NK.sum(0).unsqueeze(1)
    away = x.double().unsqueeze(1) - means
    within = torch.einsum("nk,nkd,nke->de", targets_NK, away, away) / len(x)
    shrunk = 0.9 * within + 0.1 * within.trace() / 13 * torch.eye(13)
    expected = torch.linalg.solve(shrunk, means.T).T
    torch.testing.assert_close(found.slopes(0.1) @ turn_DD.T, expected, rtol=1e-4, atol=1e-5)


def test_a_class_that_other_folds_lack_is_not_predicted() -> None:
    x, labels_N, _ = _wine()
    fold_N = torch.where(labels_N == 2, 0, 1 + torch.arange(len(x)) % 2)
    found = held_out_discriminant(FoldSums.of(x, fold_N), one_hot(labels_N, 3).unsqueeze(1))
    assert found.log_NK[fold_N == 0].argmax(1).max() < 2
    assert found.log_NK.isfinite().all()


def test_products_of_kernel_axes_are_kernel_values() -> None:
    x, _, _ = _wine()
    axes = KernelAxes.of(x, root=False, width=1.0)
    axes_ND = axes(x) + axes.mean_D
    scaled = (x - axes.centre_F) * axes.scale_F
    expected = (-torch.cdist(scaled, scaled).square() / axes.unit).exp()
    torch.testing.assert_close(axes_ND @ axes_ND.T, expected, atol=2e-3, rtol=0)
    generator = seeded(0, "head")
    for classes in (3, 300):  # the head is turned, or the samples
        head_DK = torch.randn(axes_ND.shape[1] + 1, classes, generator=generator) / axes_ND.shape[1]
        torch.testing.assert_close(axes.scores(axes.values(x), head_DK), scores(axes(x), head_DK), atol=2e-3, rtol=0)
