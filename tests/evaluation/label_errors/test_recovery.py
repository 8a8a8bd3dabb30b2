"""Metrics against scikit-learn and plain loops."""

import numpy as np
import pytest
import torch
from sklearn import metrics
from torch import nn

from selfadapt.data.images.storage import TensorImages
from selfadapt.evaluation.classification import accuracy, predict
from selfadapt.evaluation.label_errors.confusion import confusion_matrix, transition_matrix
from selfadapt.evaluation.label_errors.recovery import average_precision, judge

GENERATOR = torch.Generator().manual_seed(0)
TRUE = torch.randint(5, (300,), generator=GENERATOR)
RECOVERED = torch.where(torch.rand(300, generator=GENERATOR) < 0.7, TRUE, torch.randint(4, (300,), generator=GENERATOR))


def test_accuracy_equals_scikit_learn() -> None:
    assert accuracy(RECOVERED, TRUE) == pytest.approx(metrics.accuracy_score(TRUE, RECOVERED))
    assert accuracy(TRUE[:0], TRUE[:0]) is None


def test_confusion_equals_scikit_learn() -> None:
    expected = metrics.confusion_matrix(TRUE, RECOVERED, labels=range(5))
    np.testing.assert_array_equal(confusion_matrix(TRUE, RECOVERED, 5).numpy(), expected)


def test_average_precision_equals_scikit_learn() -> None:
    margin = torch.randperm(300, generator=GENERATOR).double()
    wrong = TRUE != RECOVERED
    expected = metrics.average_precision_score(wrong, -margin)
    assert average_precision(margin.argsort(), wrong) == pytest.approx(expected)
    assert average_precision(margin.argsort(), torch.zeros(300, dtype=torch.bool)) is None


def _close(ours: object, expected: object) -> None:
    np.testing.assert_allclose(np.asarray(ours), np.asarray(expected), rtol=1e-5, atol=1e-6)


def test_labels_are_judged_by_their_targets() -> None:
    rows = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.2, 0.5, 0.3]])
    report = judge(lambda: [rows[:2], rows[2:]], torch.tensor([0, 0, 2]), weighted=True)
    assert report.suggested_codes.tolist() == [0, 2, 1]
    assert report.runner_up_codes.tolist() == [1, 1, 2]
    _close(report.confidence, [0.7 / 0.9, 0.6 / 0.9, 0.5 / 0.8])
    _close(report.p_wrong, [0.2 / 0.9, 0.6 / 0.7, 0.5 / 0.8])
    assert report.ranked_indices.tolist() == [1, 2, 0]
    _close(report.sample_weight, [0.7, 0.6, 0.5])
    assert judge(lambda: [rows], torch.tensor([0, 0, 2]), weighted=False).sample_weight.tolist() == [1, 1, 1]


@pytest.mark.parametrize("row", [[0.25] * 4, [0.0] * 4, [0.0, 0.5, 0.5, 0.0]])
def test_a_tie_keeps_the_label(row: list[float]) -> None:
    given = torch.tensor([2, 1, 2])
    report = judge(lambda: [torch.tensor([row] * 3)], given, weighted=True)
    assert report.suggested_codes.tolist() == given.tolist()
    assert report.p_wrong.tolist() == [0.5, 0.5, 0.5]
    assert report.ranked_indices.tolist() == [0, 1, 2]


def test_the_remaining_share_of_the_label_is_not_evidence() -> None:
    """Targets that moved three times are read like the predictions that they moved towards."""
    predicted = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.7, 0.2]])
    given = torch.tensor([1, 1])
    share = 0.9**3
    targets = share * torch.eye(3)[given] + (1 - share) * predicted
    moved = judge(lambda: [targets], given, weighted=True, label_share_N=torch.full((2,), share))
    plain = judge(lambda: [predicted], given, weighted=True)
    assert moved.suggested_codes.tolist() == plain.suggested_codes.tolist() == [0, 1]
    _close(moved.p_wrong, plain.p_wrong)
    _close(moved.confidence, plain.confidence)
    _close(moved.sample_weight, targets.amax(1))


def test_one_class_has_no_other() -> None:
    report = judge(lambda: [torch.ones(2, 1)], torch.tensor([0, 0]), weighted=True)
    assert report.p_wrong.tolist() == [0, 0]
    assert report.confidence.tolist() == [1, 1]


def test_a_class_that_labels_are_taken_for_counts_more() -> None:
    """Of two equally uncertain labels, the one that goes wrong like many others ranks first."""
    confident, uncertain = [0.05, 0.9, 0.05], [0.5, 0.5, 0.0]
    rows = torch.tensor(
        [confident] * 40 + [[0.9, 0.05, 0.05]] * 40 + [[0.05, 0.05, 0.9]] * 40 + [[0.5, 0.0, 0.5], uncertain]
    )
    given = torch.tensor([0] * 20 + [1] * 20 + [0] * 40 + [2] * 40 + [0, 0])  # of class 1, half are labelled 0
    report = judge(lambda: rows.split(50), given, weighted=True)
    assert report.suggested_codes[-2:].tolist() == [0, 0]
    assert report.p_wrong[-1] > 0.65 > 0.5 > report.p_wrong[-2]
    assert sorted(report.ranked_indices[:20].tolist()) == list(range(20))


def test_noise_without_a_pattern_leaves_p_wrong_as_it_is() -> None:
    generator = torch.Generator().manual_seed(3)
    truth = torch.randint(4, (2000,), generator=generator)
    given = torch.where(
        torch.rand(2000, generator=generator) < 0.4, torch.randint(4, (2000,), generator=generator), truth
    )
    rows = 0.6 * torch.eye(4)[truth] + 0.4 * torch.rand(2000, 4, generator=generator).softmax(1)
    mass = rows.gather(1, given.unsqueeze(1)).squeeze(1)
    other = rows.scatter(1, given.unsqueeze(1), 0).amax(1)
    p_wrong = judge(lambda: [rows], given, weighted=True).p_wrong
    np.testing.assert_allclose(p_wrong, other / (mass + other), atol=0.03)


def test_transition_matrix_equals_scikit_learn() -> None:
    expected = metrics.confusion_matrix(TRUE, RECOVERED, labels=range(5), normalize="true")
    np.testing.assert_allclose(transition_matrix(TRUE, RECOVERED, 5), expected)
    assert torch.equal(transition_matrix(TRUE, RECOVERED, 6)[5], torch.tensor([0, 0, 0, 0, 0, 1.0]).double())


def test_prediction_is_in_evaluation_mode_and_over_the_classes_only() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.Dropout(0.9)).train()
    images = torch.randint(0, 256, (10, 1, 2, 2), dtype=torch.uint8)
    ours = predict(model, TensorImages(images), 3, torch.device("cpu"))
    expected = model[1](images.flatten(1).float() / 255)[:, :3].softmax(1)
    torch.testing.assert_close(ours, expected.detach())
    assert model.training
