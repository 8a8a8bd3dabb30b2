"""What a review measures: an unbiased accuracy whose interval holds at all times, and how many checks are missing."""

from dataclasses import replace

import numpy as np
import pytest

from review.reviewed import report_on
from selfadapt.evaluation.label_errors.report import LabelErrorReport
from selfadapt.review.journal import Decision
from selfadapt.review.statistics.draws import SUGGESTIONS, Draw
from selfadapt.review.statistics.measurement import (
    further_checks,
    measure_suggestions,
    review_split,
    reviewed_in_order,
)
from selfadapt.review.statistics.precision_bound import depth_grid

CLASSES = ("a", "b")
SIZE = 120


def _decided(label: str | None, *, individual: bool = True) -> Decision:
    return Decision(label=label, what="choose", who="", when="", line=1, individual=individual)


def _report(given_N: "np.ndarray[tuple[int], np.dtype[np.int64]]", predicted_N: object) -> LabelErrorReport:
    made = report_on(given_N, classes=CLASSES, split="test", ids=[f"id{i}" for i in range(len(given_N))])
    return replace(made, predicted_codes=np.asarray(predicted_N))


def _draw(order: object, suggested: str = "a", depths: int = 1) -> Draw:
    ids = [f"id{i}" for i in range(SIZE)]
    depth_J = depth_grid(SIZE) if depths > 1 else np.array([SIZE])
    names = [suggested] * SIZE
    return Draw(of=SUGGESTIONS, ids=ids, given=names, suggested=names, order_N=np.asarray(order), depth_J=depth_J)


def test_the_accuracy_of_a_random_sample_is_unbiased_and_its_interval_holds_at_all_times() -> None:
    generator = np.random.default_rng(0)
    truth_N, given_N, predicted_N = (generator.integers(0, 2, SIZE) for _ in range(3))
    predicted_N = np.where(generator.random(SIZE) < 0.8, truth_N, predicted_N)
    report, true = _report(given_N, predicted_N), float((predicted_N == truth_N).mean())
    estimates, missed = [], 0
    for _ in range(100):
        draw = _draw(generator.permutation(SIZE))
        decisions: dict[str, Decision] = {}
        outside = False
        for turn, sample_id in enumerate(draw.in_order[:60], start=1):
            decisions[sample_id] = _decided(CLASSES[truth_N[int(sample_id[2:])]])
            if turn % 10 == 0:
                found = review_split(report, "test", decisions, draw, 0.9).accuracy_true
                outside |= found is None or not found.low <= true <= found.high
        assert found is not None
        estimates.append(found.value)
        missed += outside
    error = np.std(estimates) / np.sqrt(len(estimates))
    assert np.mean(estimates) == pytest.approx(true, abs=4 * error)
    assert missed <= 10


def test_removed_samples_may_have_been_anything() -> None:
    zeros = np.zeros(SIZE, int)
    draw = _draw(np.arange(SIZE))
    decisions = {f"id{i}": _decided("a" if i % 2 else None) for i in range(SIZE)}
    found = review_split(_report(zeros, zeros), "test", decisions, draw, 0.95)
    assert (found.removed, found.changed, found.accuracy_reviewed) == (60, 0, 1.0)
    assert found.accuracy_true is not None
    assert (found.accuracy_true.value, found.accuracy_true.low, found.accuracy_true.high) == (1.0, 0.5, 1.0)


def test_evidence_ends_at_the_first_gap() -> None:
    draw = _draw(np.arange(SIZE)[::-1])
    decisions = {sample_id: _decided("a") for sample_id in draw.in_order[:9]}
    assert reviewed_in_order(draw, decisions) == 9
    assert reviewed_in_order(draw, {**decisions, draw.in_order[4]: _decided("a", individual=False)}) == 4
    del decisions[draw.in_order[2]]
    assert reviewed_in_order(draw, decisions) == 2


def test_the_number_of_further_checks_is_about_right() -> None:
    """If the rest is like the reviewed ones, the precision is reached after that many checks, and not after half."""
    draw = _draw(np.random.default_rng(0).permutation(SIZE), depths=10)
    decisions = {sample_id: _decided("a") for sample_id in draw.in_order[:10]}
    more = further_checks(measure_suggestions(draw, decisions, 0.9), 0.8)
    assert more is not None
    assert more > 5

    def holds(checks: int) -> bool:
        seen = {sample_id: _decided("a") for sample_id in draw.in_order[: 10 + checks]}
        return measure_suggestions(draw, seen, 0.9).deepest(0.8) is not None

    assert holds(round(1.15 * more) + 1)
    assert not holds(more // 2)
    wrong = {sample_id: _decided("b") for sample_id in draw.in_order[:40]}
    assert further_checks(measure_suggestions(draw, wrong, 0.9), 0.8) is None
