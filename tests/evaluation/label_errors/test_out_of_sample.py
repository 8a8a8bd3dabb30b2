"""P(wrong) without evidence of label noise, against the formula in numpy."""

import numpy as np
import torch

from selfadapt.evaluation.label_errors.out_of_sample import judge_out_of_sample


def test_confusable_labels_are_wrong_as_those_of_a_less_certain_annotator() -> None:
    generator = np.random.default_rng(0)
    q_nk = generator.dirichlet([3, 1, 0.5], 400)
    labels = np.array([generator.choice(3, p=q_k) for q_k in q_nk])
    rate = 1e-3
    matrix_kk = np.full((3, 3), rate / 2) + (1 - 1.5 * rate) * np.eye(3)
    found = judge_out_of_sample(
        torch.from_numpy(q_nk).float(), torch.from_numpy(labels), torch.from_numpy(matrix_kk).float()
    )
    given = q_nk[np.arange(400), labels]
    weak_nk = q_nk**0.25 * q_nk.mean(0) ** 0.75
    drawn = weak_nk[np.arange(400), labels] / weak_nk.sum(1)
    symmetric = (1 - given) / given * (rate / 2) / (1 - rate)
    odds = found.p_wrong.astype(np.float64) / (1 - found.p_wrong)
    share = (odds - symmetric) / (drawn * (1 - given) / given)
    clear = (found.p_wrong > 1e-4) & (found.p_wrong < 0.999)
    assert clear.sum() > 300
    np.testing.assert_allclose(share[clear], np.median(share[clear]), rtol=0.01)
    disagreement = (1 - given).mean()
    np.testing.assert_allclose(found.p_wrong.mean(), disagreement / (2 + 30 * disagreement), rtol=1e-4)


def test_labels_whose_p_wrong_rounds_to_one_are_ranked_by_their_odds() -> None:
    given = np.array([*np.logspace(-9, -20, 12), *np.full(40, 0.999)])
    q_nk = np.stack([given, 1 - given], 1)
    found = judge_out_of_sample(
        torch.from_numpy(q_nk).float(),
        torch.zeros(len(given), dtype=torch.int64),
        torch.tensor([[0.7, 0.3], [0.3, 0.7]]),
    )
    assert (found.p_wrong[:12] == 1).all()
    assert found.ranked_indices[:12].tolist() == list(range(11, -1, -1))
    assert np.flatnonzero(found.is_error).tolist() == list(range(12))
