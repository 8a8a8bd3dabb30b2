"""Risk, coverage and the risk guarantee against explicit formulas and simulated risks."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest
from torch import Tensor

from selfadapt.evaluation.selective.guarantee import EVERYTHING, binomial_bound, candidates, guarantee
from selfadapt.evaluation.selective.risk_coverage import (
    aurc,
    exact_risk,
    excess_aurc,
    risk_at,
    risk_coverage_curve,
    threshold_for,
)
from selfadapt.evaluation.selective.selectors import class_selectors

samples = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=40)


def _tensors(drawn: list[tuple[int, bool]]) -> tuple[Tensor, Tensor]:
    return torch.tensor([float(value) for value, _ in drawn]), torch.tensor([wrong for _, wrong in drawn])


def _area_over_orders(confidence: Tensor, wrong: Tensor, orders: int = 4000) -> float:
    """The mean area when equal confidences are put in random order."""
    rng, areas = np.random.default_rng(0), []
    for _ in range(orders):
        order = np.lexsort((rng.random(len(wrong)), -confidence.numpy()))
        areas.append(np.mean(np.cumsum(wrong.numpy()[order]) / np.arange(1, len(wrong) + 1)))
    return float(np.mean(areas))


def test_the_area_equals_the_mean_over_random_orders_of_ties() -> None:
    confidence = torch.tensor([3.0, 3, 3, 2, 2, 1, 1, 1, 0])
    wrong = torch.tensor([0, 1, 0, 0, 1, 1, 0, 1, 1]).bool()
    assert aurc(confidence, wrong) == pytest.approx(_area_over_orders(confidence, wrong), abs=0.005)


@given(samples)
def test_without_ties_the_area_is_the_plain_formula(drawn: list[tuple[int, bool]]) -> None:
    _, wrong = _tensors(drawn)
    confidence = torch.arange(len(wrong)).flip(0).double()
    plain = np.mean(np.cumsum(wrong.numpy()) / np.arange(1, len(wrong) + 1))
    assert aurc(confidence, wrong) == pytest.approx(plain)


@given(samples)
def test_the_excess_is_never_negative_and_nothing_for_the_best_ranking(drawn: list[tuple[int, bool]]) -> None:
    confidence, wrong = _tensors(drawn)
    assert excess_aurc(confidence, wrong) >= -1e-12
    assert excess_aurc(1 - wrong.double(), wrong) == pytest.approx(0)
    errors, count = int(wrong.sum()), len(wrong)
    best = sum(max(0, n - (count - errors)) / n for n in range(1, count + 1)) / count
    assert aurc(confidence, wrong) - excess_aurc(confidence, wrong) == pytest.approx(best)


@given(samples, st.lists(st.floats(-1, 7), min_size=2, max_size=5))
def test_coverage_falls_with_the_threshold_and_full_coverage_is_plain_accuracy(
    drawn: list[tuple[int, bool]], thresholds: list[float]
) -> None:
    confidence, wrong = _tensors(drawn)
    covered = [risk_at(confidence, wrong, threshold)[1] for threshold in sorted(thresholds)]
    assert covered == sorted(covered, reverse=True)
    risk, coverage = risk_at(confidence, wrong, threshold_for(confidence, 1.0))
    assert (risk, coverage) == (wrong.double().mean().item(), 1.0)
    assert float(risk_coverage_curve(confidence, wrong)[1][-1]) == pytest.approx(risk)


@given(samples, st.floats(0.01, 1))
def test_a_threshold_answers_at_least_what_is_asked_for_and_no_more_than_ties_force(
    drawn: list[tuple[int, bool]], coverage: float
) -> None:
    confidence, wrong = _tensors(drawn)
    threshold = threshold_for(confidence, coverage)
    assert risk_at(confidence, wrong, threshold)[1] >= coverage - 1e-9
    if coverage < 1:
        assert (confidence > threshold).double().mean().item() < coverage


@given(samples, st.sampled_from([1.0, 0.95, 0.9, 0.5, 0.1, 1e-9]))
def test_exact_coverage_counts_the_most_confident(drawn: list[tuple[int, bool]], coverage: float) -> None:
    wrong = torch.tensor([wrong for _, wrong in drawn])
    confidence = torch.arange(len(wrong)).double()  # the last is the most confident
    _, risk = risk_coverage_curve(confidence, wrong)
    answered = max(1, math.ceil(round(coverage * len(wrong), 9)))
    assert exact_risk(risk, coverage) == pytest.approx(wrong[len(wrong) - answered :].double().mean().item())


def test_all_ties_end_and_answer_everything() -> None:
    confidence, wrong = torch.ones(1000), torch.arange(1000) < 100
    assert risk_at(confidence, wrong, threshold_for(confidence, 0.7)) == (0.1, 1.0)
    assert aurc(confidence, wrong) == pytest.approx(0.1)
    found = guarantee(confidence, wrong, risk=0.2, confidence=0.95)
    assert found is not None
    assert (found.threshold, found.coverage) == (EVERYTHING, 1.0)


def test_a_coverage_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="coverage"):
        threshold_for(torch.ones(3), 0.0)


def test_selectors_on_known_outputs() -> None:
    p = torch.tensor([[0.7, 0.2, 0.1], [0.4, 0.35, 0.25], [1 / 3, 1 / 3, 1 / 3]]).double()
    outputs = torch.cat([p.log(), torch.full((3, 1), 9.0)], 1)  # a fourth output is none of the classes
    found = class_selectors(outputs, 3)
    assert found["softmax-response"].tolist() == pytest.approx([0.7, 0.4, 1 / 3])
    assert found["margin"].tolist() == pytest.approx([0.5, 0.05, 0])
    assert found["entropy"].tolist() == pytest.approx([(row * row.log()).sum().item() for row in p])
    assert class_selectors(torch.tensor([[900.0, 0.0]]), 2)["entropy"].tolist() == [0]


@given(st.integers(1, 400), st.floats(0, 1), st.floats(0.001, 0.5))
def test_the_bound_solves_the_binomial_equation(count: int, share: float, error_budget: float) -> None:
    errors = int(share * count)
    bound = binomial_bound(errors, count, error_budget)
    if errors < count:
        assert binom.cdf(errors, count, bound) == pytest.approx(error_budget, rel=1e-6)
    else:
        assert bound == 1


def test_no_guarantee_where_none_can_hold() -> None:
    confidence = torch.rand(200, generator=torch.Generator().manual_seed(0))
    assert guarantee(confidence, torch.ones(200).bool(), risk=0.1, confidence=0.95) is None
    assert guarantee(confidence[:20], torch.zeros(20).bool(), risk=0.02, confidence=0.95) is None
    assert guarantee(confidence, torch.zeros(200).bool(), risk=0.02, confidence=0.95) is not None


def test_a_larger_error_budget_answers_more() -> None:
    generator = torch.Generator().manual_seed(0)
    confidence = torch.rand(2000, generator=generator)
    wrong = torch.rand(2000, generator=generator) > confidence**0.2
    covered = []
    for asked in (0.999, 0.9, 0.5):
        found = guarantee(confidence, wrong, risk=0.1, confidence=asked)
        assert found is not None
        covered.append(found.coverage)
    assert covered == sorted(covered)
    assert candidates(confidence, wrong, risk=0.1, confidence=0.9)[0].coverage == 1.0


def _drawn(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Confidences with ties, and errors that come with probability 0.4 (1 - confidence)^2."""
    confidence = (torch.rand(count, generator=generator) * 50).floor() / 50
    return confidence, torch.rand(count, generator=generator) < 0.4 * (1 - confidence) ** 2


def _true_risk(threshold: float) -> float:
    values = torch.arange(50).double() / 50
    answered = values[values > threshold]
    return float((0.4 * (1 - answered) ** 2).mean()) if len(answered) else 0.0


@pytest.mark.parametrize(("count", "risk", "asked"), [(1000, 0.08, 0.95), (1000, 0.06, 0.9), (300, 0.1, 0.8)])
def test_the_guarantee_fails_no_more_often_than_it_says(count: int, risk: float, asked: float) -> None:
    """Made-up risks are known exactly, so a guarantee that fails is known too."""
    generator = torch.Generator().manual_seed(count)
    trials, failed, given_out = 500, 0, 0
    for _ in range(trials):
        found = guarantee(*_drawn(count, generator), risk=risk, confidence=asked)
        if found is not None:
            given_out += 1
            failed += _true_risk(found.threshold) > risk
    assert given_out > trials / 2
    assert binomtest(failed, trials, 1 - asked, alternative="greater").pvalue > 0.01


def test_the_guarantee_holds_over_random_splits_of_held_out_predictions() -> None:
    """A network's real predictions on digits, parted 500 times; the risk of the other part counts."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    data = load_digits()
    network = LogisticRegression(C=1e-4, max_iter=50).fit(data.data[:400], data.target[:400])
    p = torch.tensor(network.predict_proba(data.data[400:]))
    confidence, wrong = p.max(1).values, p.argmax(1) != torch.tensor(data.target[400:])
    generator, failed = torch.Generator().manual_seed(0), 0
    for _ in range(500):
        order = torch.randperm(len(wrong), generator=generator)
        held_out, rest = order[:700], order[700:]
        found = guarantee(confidence[held_out], wrong[held_out], risk=0.1, confidence=0.95)
        if found is not None:
            answered = confidence[rest] > found.threshold
            failed += wrong[rest][answered].double().mean().item() > 0.1
    assert failed <= 0.05 * 500


@settings(max_examples=20)
@given(st.integers(1, 30))
def test_a_guarantee_needs_a_risk_and_a_confidence_within_bounds(count: int) -> None:
    for risk, asked in ((0.0, 0.9), (1.0, 0.9), (0.1, 1.0), (math.nan, 0.9)):
        with pytest.raises(ValueError, match="between 0 and 1"):
            guarantee(torch.ones(count), torch.zeros(count).bool(), risk=risk, confidence=asked)
