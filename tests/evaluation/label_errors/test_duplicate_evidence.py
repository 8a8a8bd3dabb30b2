"""Labels of duplicates as evidence: against Bayes' rule written out, and less of it where conflicts are natural."""

import numpy as np
import pytest
import torch

from selfadapt.evaluation.label_errors.duplicate_evidence import explained_conflicts, with_duplicates

NOISE = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])


def test_the_prior_of_a_member_is_bayes_rule_over_its_group() -> None:
    predicted = torch.tensor([[0.5, 0.3, 0.2], [0.4, 0.4, 0.2], [0.6, 0.3, 0.1], [0.2, 0.3, 0.5]])
    labels = torch.tensor([0, 0, 1, 2])
    found = with_duplicates(predicted, labels, NOISE, [[0, 1, 2]])
    noise = NOISE.double().numpy() ** explained_conflicts(labels, NOISE, [[0, 1, 2]])
    group = predicted[:3].double().numpy()
    for sample in range(3):
        others = [other for other in range(3) if other != sample]
        prior = np.exp(np.log(group).mean(0)) * np.prod([noise[:, labels[other]] for other in others], axis=0)
        np.testing.assert_allclose(found[sample].numpy(), prior / prior.sum(), rtol=1e-5)
    assert torch.equal(found[3], predicted[3])
    assert found[2, 1] < predicted[2, 1]  # the label that disagrees loses, the others gain
    assert found[0, 0] > predicted[0, 0]


@pytest.mark.parametrize(("conflicts", "explained"), [(0, 1.0), (3, 1.0), (10, 4.6 / 11)])
def test_conflicts_beyond_the_error_rate_are_not_all_errors(conflicts: int, explained: float) -> None:
    """Ten pairs under an error rate of 0.2: 1 - 0.8² = 0.36 of them are expected to have different labels."""
    labels = torch.zeros(20, dtype=torch.int64)
    labels[1 : 2 * conflicts : 2] = 1
    pairs = [[2 * pair, 2 * pair + 1] for pair in range(10)]
    assert explained_conflicts(labels, NOISE, pairs) == pytest.approx(explained)
    predicted = torch.tensor([0.6, 0.3, 0.1]).repeat(20, 1)
    shift = (with_duplicates(predicted, labels, NOISE, pairs)[0] / predicted[0]).log()
    label = int(labels[1])
    other = 1 - label
    assert float(shift[label] - shift[other]) == pytest.approx(explained * np.log(8), rel=1e-4)
