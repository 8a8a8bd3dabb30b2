"""scikit-learn's own rules for estimators, and what is gained over a plain classifier."""

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from selfadapt import SelfAdaptiveClassifier, find_label_errors
from selfadapt.evaluation.label_errors.checked_input import Array


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_it_is_an_estimator_by_the_rules() -> None:
    results = check_estimator(SelfAdaptiveClassifier(rounds=1), on_fail=None)
    assert len(results) > 40
    assert [(own["check_name"], own["exception"]) for own in results if own["status"] == "failed"] == []


def _noisy_digits() -> tuple[Array, Array, Array]:
    """Features, labels of which two fifths are one class too high, and the truth."""
    features, truth = load_digits(return_X_y=True)
    wrong = np.random.default_rng(0).random(len(truth)) < 0.4
    return features[:1200], np.where(wrong, (truth + 1) % 10, truth)[:1200], truth[:1200]


def test_it_learns_what_a_plain_classifier_gets_wrong_and_tells_which_labels_are() -> None:
    features, labels, truth = _noisy_digits()
    test, test_truth = (part[1200:] for part in load_digits(return_X_y=True))
    words = np.array([f"digit {k}" for k in range(10)])
    model = SelfAdaptiveClassifier().fit(features, words[labels])
    plain = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(features, words[labels])
    assert model.score(test, words[test_truth]) > plain.score(test, words[test_truth]) + 0.1
    np.testing.assert_allclose(model.predict_proba(test).sum(1), 1, atol=1e-5)
    found = model.label_errors_
    assert (labels != truth)[found.is_error].mean() > 0.9
    assert found.given_labels.tolist() == words[labels].tolist()
    off_by_one = model.transition_[np.arange(10), (np.arange(10) + 1) % 10]
    assert 0.3 < off_by_one.mean() < 0.5


def test_the_list_is_that_of_find_label_errors_up_to_the_folds() -> None:
    features, labels, _ = _noisy_digits()
    model = SelfAdaptiveClassifier(random_state=3).fit(features, labels)
    seed = int(np.random.RandomState(3).randint(2**31 - 1))
    expected = find_label_errors(labels, features=features.astype(np.float32), seed=seed)
    np.testing.assert_array_equal(model.label_errors_.p_wrong, expected.p_wrong)


def test_groups_and_cross_validation() -> None:
    small, given = (part[:400] for part in load_digits(return_X_y=True))
    model = SelfAdaptiveClassifier(rounds=1)
    assert cross_val_score(model, small, given, cv=2).mean() > 0.8
    with pytest.raises(ValueError, match="fall into 2 groups"):
        model.fit(small, given, groups=np.arange(400) % 2)
    with pytest.raises(ValueError, match="groups are missing in 396 places, first in 0"):
        model.fit(small, given, groups=[None] * 396 + ["a", "a", "b", "b"])
    model.fit(small, given)
    unfit: tuple[Any, ...] = (0, 1.5)
    for rounds in unfit:
        with pytest.raises(ValueError, match="rounds must be a positive integer"):
            SelfAdaptiveClassifier(rounds=rounds).fit(small, given)
    for features, labels, message in (
        (small, np.zeros(400, int), "has only the class"),
        (small[:8], np.arange(8) % 2, "8 samples are too few"),
        (small[:20], np.arange(20) % 5, "no class has 5 samples"),
        (small * 1e19, given, "over- or underflow in float32"),
        (small * 1e-30, given, "over- or underflow in float32"),
        (small, np.ma.array(given, mask=given == 3), "X or y has masked values"),
        (small, np.where(given == 3, "NaT", "2026-01-01").astype("datetime64[D]"), "y contains NaT"),
    ):
        with pytest.raises(ValueError, match=message):
            model.fit(features, labels)
    assert model.score(small, given) > 0.9, "a fit that failed leaves the one before"
