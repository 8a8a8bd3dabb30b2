"""Many heads at once, against scikit-learn's one at a time."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from selfadapt.core.rng import seeded
from selfadapt.models.linear.softmax_regression import PrincipalAxes, _chunks, fit_heads, logits


def _digits(count: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.from_numpy(x[:count]).float(), torch.from_numpy(y[:count]).long()


@pytest.mark.parametrize("one_unit", [True, False])
def test_axes_keep_every_distance_between_scaled_samples(one_unit: bool) -> None:
    """All values are divided by one deviation if they share a unit, else each by its own."""
    x, _ = _digits()
    x = x[:, x.std(0) > 0.5]
    if not one_unit:
        x[:, ::2] *= 1000
    for rows in (400, 30):  # more and fewer samples than features
        x_nF = x[:rows]
        axes_nD = PrincipalAxes.of(x_nF)(x_nF)
        centred_nF = x_nF - x_nF.mean(0)
        scaled_nF = centred_nF if one_unit else (centred_nF / x_nF.std(0).clamp_min(1e-6))[:, x_nF.std(0) > 0]
        scaled_nF = scaled_nF / scaled_nF.square().sum(1).mean().sqrt()
        torch.testing.assert_close(torch.cdist(axes_nD[:, :-1], axes_nD[:, :-1]), torch.cdist(scaled_nF, scaled_nF),
                                   atol=2e-3, rtol=1e-3)  # fmt: skip
        assert bool((axes_nD[:, -1] == 1).all())


def test_each_fold_and_decay_is_scikit_learns() -> None:
    x, y = _digits()
    axes_ND = PrincipalAxes.of(x)(x)
    fold_N = torch.arange(len(y)) % 3
    decays = (1e-1, 1e-3, 1e-4)
    weights_NP = torch.stack([(fold_N != fold).float() * (1 + fold_N) for fold in range(3)], 1)
    targets_N1K = torch.nn.functional.one_hot(y, 10).float().unsqueeze(1)
    start_DPK = torch.zeros(axes_ND.shape[1], 3, 10)
    heads_DPK = fit_heads(
        axes_ND, targets_N1K, weights_NP, torch.tensor(decays), start_DPK, passes=300, tolerance=1e-7
    )  # fmt: skip
    for fold, decay in enumerate(decays):
        weights_N = weights_NP[:, fold].double().numpy()
        model = LogisticRegression(C=1 / (decay * weights_N.sum()), max_iter=5000, tol=1e-8)
        model.fit(axes_ND[:, :-1].double().numpy(), y.numpy(), sample_weight=weights_N)
        expected = model.predict_proba(axes_ND[:, :-1].double().numpy())
        found = logits(axes_ND, heads_DPK)[:, fold].softmax(1).numpy()
        assert np.abs(found - expected).max() < 5e-3


def test_soft_targets_are_learned_as_copies_of_a_sample_with_each_label() -> None:
    generator = seeded(0, "soft")
    x = torch.randn(60, 5, generator=generator)
    targets_NK = torch.rand(60, 3, generator=generator).pow(4)
    targets_NK /= targets_NK.sum(1, keepdim=True)
    axes_ND = PrincipalAxes.of(x)(x)
    start_DPK, decay_P = torch.zeros(axes_ND.shape[1], 1, 3), torch.tensor([1e-2])
    soft_DPK = fit_heads(
        axes_ND, targets_NK.unsqueeze(1), torch.ones(60, 1), decay_P, start_DPK, passes=200, tolerance=1e-8
    )  # fmt: skip
    copies = LogisticRegression(C=1 / (1e-2 * 60), max_iter=5000, tol=1e-9)
    copies.fit(
        axes_ND[:, :-1].repeat_interleave(3, 0).double().numpy(),
        np.tile(np.arange(3), 60),
        sample_weight=targets_NK.double().numpy().ravel(),
    )
    expected = copies.predict_proba(axes_ND[:, :-1].double().numpy())
    assert np.abs(logits(axes_ND, soft_DPK)[:, 0].softmax(1).numpy() - expected).max() < 2e-3


def test_a_fit_in_pieces_with_tables_of_their_own_is_the_same_to_the_last_digits() -> None:
    x, y = _digits(1797)
    axes_ND = PrincipalAxes.of(x)(x)
    fold_N = (torch.arange(len(y)) * 4) // len(y)  # standing together, so that problems skip whole pieces
    weights_NP = torch.stack([(fold_N != fold).float() for fold in range(4)], 1)
    assert [len(active_p) for _, active_p in _chunks(weights_NP, 10)] == [3, 3, 3, 3]
    assert len(_chunks(weights_NP[::10], 10)) == 1, "few samples are not divided: chunks have a cost"
    targets_N1K = torch.nn.functional.one_hot(y, 10).float().unsqueeze(1)
    start_DPK, decay_P = torch.zeros(axes_ND.shape[1], 4, 10), torch.full((4,), 1e-3)
    once_DPK = fit_heads(axes_ND, targets_N1K, weights_NP, decay_P, start_DPK, passes=60, tolerance=1e-7)
    shuffled_N = torch.randperm(len(y), generator=seeded(1, "order"))  # now nothing can be skipped
    tables_NTK = targets_N1K[shuffled_N].repeat(1, 4, 1)
    again_DPK = fit_heads(
        axes_ND[shuffled_N], tables_NTK, weights_NP[shuffled_N], decay_P, start_DPK,
        table_P=torch.arange(4), passes=60, tolerance=1e-7,
    )  # fmt: skip
    one, other = (logits(axes_ND, heads_DPK).softmax(2) for heads_DPK in (once_DPK, again_DPK))
    torch.testing.assert_close(one, other, atol=2e-3, rtol=0)
