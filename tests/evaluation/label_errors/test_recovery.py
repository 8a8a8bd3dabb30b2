"""Metrics against scikit-learn and plain loops."""

import numpy as np
import pytest
import torch
from sklearn import metrics
from torch import nn

from selfadapt.data.images.storage import TensorImages
from selfadapt.evaluation.classification import accuracy, predict
from selfadapt.evaluation.label_errors.recovery import (
    average_precision,
    confusion_matrix,
    judge,
    mean_weights,
    transition_matrix,
)

GENERATOR = torch.Generator().manual_seed(0)
TRUE = torch.randint(5, (300,), generator=GENERATOR)
RECOVERED = torch.where(torch.rand(300, generator=GENERATOR) < 0.7, TRUE, torch.randint(4, (300,), generator=GENERATOR))
WEIGHT = torch.rand(300, generator=GENERATOR)


def test_accuracy_equals_scikit_learn() -> None:
    assert accuracy(RECOVERED, TRUE) == pytest.approx(metrics.accuracy_score(TRUE, RECOVERED))
    assert accuracy(TRUE[:0], TRUE[:0]) is None


def test_confusion_equals_scikit_learn() -> None:
    expected = metrics.confusion_matrix(TRUE, RECOVERED, labels=range(5))
    np.testing.assert_array_equal(confusion_matrix(TRUE, RECOVERED, 5).numpy(), expected)


def test_mean_weights_equal_a_loop() -> None:
    ours = mean_weights(TRUE, RECOVERED, WEIGHT, 6)
    for i in range(6):
        for j in range(6):
            chosen = WEIGHT[(i == TRUE) & (j == RECOVERED)]
            assert (
                ours[i, j].isnan()
                if not len(chosen)
                else ours[i, j].item() == pytest.approx(chosen.double().mean().item())
            )


def test_average_precision_equals_scikit_learn() -> None:
    margin = torch.randperm(300, generator=GENERATOR).double()
    wrong = TRUE != RECOVERED
    expected = metrics.average_precision_score(wrong, -margin)
    assert average_precision(margin.argsort(), wrong) == pytest.approx(expected)
    assert average_precision(margin.argsort(), torch.zeros(300, dtype=torch.bool)) is None


def test_verdicts_read_the_targets() -> None:
    rows = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.2, 0.5, 0.3]])
    verdicts = judge(lambda: [rows[:2], rows[2:]], torch.tensor([0, 0, 2]), weighted=True)
    assert verdicts.suggested_N.tolist() == [0, 2, 1]
    torch.testing.assert_close(verdicts.confidence_N, torch.tensor([0.7 / 0.9, 0.6 / 0.9, 0.5 / 0.8]))
    torch.testing.assert_close(verdicts.support_N, torch.tensor([0.7 / 0.9, 0.1 / 0.7, 0.3 / 0.8]))
    assert verdicts.order_N.tolist() == [1, 2, 0]
    torch.testing.assert_close(verdicts.weight_N, torch.tensor([0.7, 0.6, 0.5]))
    assert judge(lambda: [rows], torch.tensor([0, 0, 2]), weighted=False).weight_N.tolist() == [1, 1, 1]


@pytest.mark.parametrize("row", [[0.25] * 4, [0.0] * 4, [0.0, 0.5, 0.5, 0.0]])
def test_in_doubt_the_label_stays(row: list[float]) -> None:
    given = torch.tensor([2, 1, 2])
    verdicts = judge(lambda: [torch.tensor([row] * 3)], given, weighted=True)
    assert torch.equal(verdicts.suggested_N, given)
    assert verdicts.support_N.tolist() == [0.5, 0.5, 0.5]
    assert verdicts.order_N.tolist() == [0, 1, 2]


def test_what_is_left_of_the_label_is_no_evidence() -> None:
    """Targets that moved three times read like the predictions they moved towards."""
    predicted = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.7, 0.2]])
    given = torch.tensor([1, 1])
    share = 0.9**3
    targets = share * torch.eye(3)[given] + (1 - share) * predicted
    moved = judge(lambda: [targets], given, weighted=True, label_share_N=torch.full((2,), share))
    plain = judge(lambda: [predicted], given, weighted=True)
    assert moved.suggested_N.tolist() == plain.suggested_N.tolist() == [0, 1]
    torch.testing.assert_close(moved.support_N, plain.support_N)
    torch.testing.assert_close(moved.confidence_N, plain.confidence_N)
    torch.testing.assert_close(moved.weight_N, targets.amax(1))


def test_one_class_has_no_other() -> None:
    verdicts = judge(lambda: [torch.ones(2, 1)], torch.tensor([0, 0]), weighted=True)
    assert verdicts.support_N.tolist() == verdicts.confidence_N.tolist() == [1, 1]


def test_a_class_that_labels_are_taken_for_counts_more() -> None:
    """Of two equally uncertain labels, the one that goes wrong like many others ranks first."""
    confident, uncertain = [0.05, 0.9, 0.05], [0.5, 0.5, 0.0]
    rows = torch.tensor(
        [confident] * 40 + [[0.9, 0.05, 0.05]] * 40 + [[0.05, 0.05, 0.9]] * 40 + [[0.5, 0.0, 0.5], uncertain]
    )
    given = torch.tensor([0] * 20 + [1] * 20 + [0] * 40 + [2] * 40 + [0, 0])  # of class 1, half are labelled 0
    verdicts = judge(lambda: rows.split(50), given, weighted=True)
    assert verdicts.suggested_N[-2:].tolist() == [0, 0]
    assert verdicts.support_N[-1] < 0.35 < 0.5 < verdicts.support_N[-2]
    assert sorted(verdicts.order_N[:20].tolist()) == list(range(20))


def test_noise_without_a_pattern_leaves_support_as_it_is() -> None:
    generator = torch.Generator().manual_seed(3)
    truth = torch.randint(4, (2000,), generator=generator)
    given = torch.where(
        torch.rand(2000, generator=generator) < 0.4, torch.randint(4, (2000,), generator=generator), truth
    )
    rows = 0.6 * torch.eye(4)[truth] + 0.4 * torch.rand(2000, 4, generator=generator).softmax(1)
    mass = rows.gather(1, given.unsqueeze(1)).squeeze(1)
    other = rows.scatter(1, given.unsqueeze(1), 0).amax(1)
    support = judge(lambda: [rows], given, weighted=True).support_N
    torch.testing.assert_close(support, mass / (mass + other), atol=0.03, rtol=0)


def test_transition_matrix_equals_scikit_learn() -> None:
    expected = metrics.confusion_matrix(TRUE, RECOVERED, labels=range(5), normalize="true")
    np.testing.assert_allclose(transition_matrix(TRUE, RECOVERED, 5), expected)
    assert torch.equal(transition_matrix(TRUE, RECOVERED, 6)[5], torch.tensor([0, 0, 0, 0, 0, 1.0]).double())


def test_prediction_is_in_evaluation_mode_and_over_the_classes_only() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.Dropout(0.9)).train()
    images = torch.randint(0, 256, (10, 1, 2, 2), dtype=torch.uint8)
    ours = predict(model, TensorImages(images), 3, torch.device("cpu"), batch_size=4)
    expected = model[1](images.flatten(1).float() / 255)[:, :3].softmax(1)
    torch.testing.assert_close(ours, expected.detach())
    assert model.training
