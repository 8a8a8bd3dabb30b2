"""One source of figures: expectations before a decision, and intervals that hold at all times after fifty."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.program import run, run_json
from review.reviewed import Server, report_on
from selfadapt.evaluation.label_errors.report import LabelErrorReport
from selfadapt.review.journal import Decision
from selfadapt.review.statistics.draws import SUGGESTIONS, Draw
from selfadapt.review.statistics.label_figures import ENOUGH, WIDTH, figures_of, label_figures
from selfadapt.review.statistics.precision_bound import depth_grid
from selfadapt.review.statistics.strata import strata_of
from selfadapt.run_folder.folder import RunFolder

SIZE, ERRORS = 1000, 150  # labels, the first of which are likely errors
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]


def _report(p_wrong_N: Any, *, calibrated: bool = True, split: str = "train") -> LabelErrorReport:
    is_error = np.arange(SIZE) < ERRORS
    ids = [f"id{i}" for i in range(SIZE)]
    made = report_on(np.zeros(SIZE, int), is_error.astype(int), classes=("a", "b"), split=split, ids=ids)
    score = np.zeros(SIZE) if calibrated else np.full(SIZE, np.nan)
    return replace(made, p_wrong=np.asarray(p_wrong_N), outlier_score=score)


def _draw(generator: np.random.Generator, of: str) -> Draw:
    size = ERRORS if of == SUGGESTIONS else SIZE
    names = ["a"] * size
    depth_J = depth_grid(size) if of == SUGGESTIONS else np.array([size])
    ids = [f"id{i}" for i in range(size)]
    return Draw(of=of, ids=ids, given=names, suggested=names, order_N=generator.permutation(size), depth_J=depth_J)


def _decisions(ids: list[str], wrong_N: Flags) -> dict[str, Decision]:
    return {
        own: Decision(
            label="b" if wrong_N[int(own[2:])] else "a", what="choose", who="", when="", line=1, individual=True
        )
        for own in ids
    }


P_WRONG = np.where(np.arange(SIZE) < ERRORS, 0.8, 0.02)


def test_before_a_decision_all_follows_from_p_wrong() -> None:
    found = figures_of(_report(P_WRONG), {}, {})
    (own,) = found.rows
    assert own.error_rate.value == pytest.approx(P_WRONG.mean())
    assert own.precision is not None
    assert own.recall is not None
    assert own.precision.value == pytest.approx(0.8)
    assert own.recall.value == pytest.approx(120 / 137)
    assert (own.error_rate.low, own.wrong, own.decided) == (None, 137, 0)
    first, second = found.sentences
    assert first == (
        "An estimated 137 of 1,000 labels are wrong; 150 are listed as likely errors (150 train), of which about 80.0 "
        "% are wrong."
    )
    assert f"check about {own.further_checks:,} of them at random" in second


def test_without_calibrated_p_wrong_the_list_is_counted_and_no_precision_is_claimed() -> None:
    found = figures_of(_report(P_WRONG, calibrated=False), {}, {})
    assert found.total.wrong == ERRORS
    assert found.total.precision is None
    assert found.sentences[0] == (
        "Of 1,000 labels, 150 are listed as likely errors (150 train). "
        "This method does not estimate how many are wrong."
    )
    older = figures_of(_report(np.full(SIZE, np.nan), calibrated=False), {}, {})
    assert older.total.wrong == ERRORS


def _checks(order: Draw, wrong_N: Flags, count: int) -> Mapping[str, Decision]:
    return _decisions(order.in_order[:count], wrong_N)


def test_intervals_begin_with_fifty_decisions_and_hold_at_all_times() -> None:
    """In 100 reviews of 300 checks each, with an interval after every 25th, at most 5 may ever miss the truth."""
    generator = np.random.default_rng(0)
    report, missed = _report(P_WRONG), np.zeros(3, int)
    for _ in range(100):
        wrong_N = generator.random(SIZE) < np.where(np.arange(SIZE) < ERRORS, 0.7, 0.05)
        truth = wrong_N.mean(), wrong_N[:ERRORS].mean(), wrong_N[:ERRORS].sum() / wrong_N.sum()
        draw, outside = _draw(generator, "train"), np.zeros(3, bool)
        for count in range(ENOUGH, 301, 25):
            own = figures_of(report, _checks(draw, wrong_N, count), {"train": draw}).splits[0]
            for place, (share, true) in enumerate(zip((own.error_rate, own.precision, own.recall), truth, strict=True)):
                assert share is not None
                assert share.low is not None
                assert share.high is not None
                assert share.low <= share.value <= share.high
                outside[place] |= not share.low <= true <= share.high
        missed += outside
    assert (missed <= 5).all(), missed
    before = figures_of(report, _checks(draw, wrong_N, ENOUGH - 1), {"train": draw}).splits[0]
    assert before.error_rate.low is None


def test_further_checks_narrow_the_error_rate() -> None:
    generator = np.random.default_rng(1)
    wrong_N = generator.random(SIZE) < P_WRONG
    report, draw = _report(P_WRONG), _draw(generator, "train")
    own = figures_of(report, _checks(draw, wrong_N, 60), {"train": draw}).splits[0]
    assert own.further_checks > 20
    later = figures_of(report, _checks(draw, wrong_N, 60 + round(1.3 * own.further_checks)), {"train": draw})
    rate = later.splits[0].error_rate
    assert rate.low is not None
    assert rate.high is not None
    assert rate.high - rate.low <= 2 * WIDTH
    assert later.splits[0].further_checks == 0
    assert "the error rate is known to within" in later.sentences[-1]
    sooner = figures_of(report, _checks(draw, wrong_N, 60 + own.further_checks // 2), {"train": draw}).splits[0]
    assert sooner.further_checks > 0


def test_decisions_down_the_list_say_nothing_of_the_rest() -> None:
    wrong_N = np.ones(SIZE, bool)
    worked = _decisions([f"id{i}" for i in range(60)], wrong_N)
    own = figures_of(_report(P_WRONG), worked, {}).splits[0]
    assert (own.decided, own.error_rate.low) == (60, None)
    assert own.error_rate.value == pytest.approx((60 + 90 * 0.8 + 850 * 0.02) / SIZE)
    whole = _decisions([f"id{i}" for i in range(ERRORS)], np.arange(SIZE) % 3 > 0)
    own = figures_of(_report(P_WRONG), whole, {}).splits[0]
    assert own.precision is not None
    assert own.precision.low == own.precision.high == 100 / 150, "all likely errors were decided"


def test_suggestions_that_were_drawn_measure_the_precision_alone() -> None:
    generator = np.random.default_rng(2)
    wrong_N = generator.random(SIZE) < P_WRONG
    draw = _draw(generator, SUGGESTIONS)
    own = figures_of(_report(P_WRONG), _checks(draw, wrong_N, 70), {SUGGESTIONS: draw}).splits[0]
    assert own.error_rate.low is None
    assert own.precision is not None
    assert own.precision.low is not None
    assert own.precision.low <= wrong_N[:ERRORS].mean()
    moved = _report(P_WRONG, split="test")
    assert strata_of(moved, "test", {}, {SUGGESTIONS: draw})[0].checks == [], "suggestions are on training labels"


def test_audit_report_and_review_say_the_same(server: Server) -> None:
    folder = server.run.parent
    shown = server.json("api/figures")
    sentences = label_figures(RunFolder(server.run)).sentences
    assert shown["sentences"] == sentences
    assert [row[0] for row in shown["rows"]] == ["train", "validation", "test", "all"]
    assert shown["rows"][-1][2] == str(server.json("api/about")["errors"]), "as many as there are to decide about"
    told = run("audit", server.run.name, folder=folder).stdout
    assert run("report", server.run.name, folder=folder).returncode == 0
    page = (server.run / "report.html").read_text()
    for text in (*sentences, *(cell for row in shown["rows"] for cell in row)):
        assert text in told
        assert text in page
    audit = run_json("audit", server.run.name, folder=folder)
    assert audit["summary"] == " ".join(sentences)
    assert sum(part["suspects"] for part in audit["parts"].values()) == int(shown["rows"][-1][2])
    assert "cannot be" not in told + page


def test_after_fifty_random_looks_all_three_give_the_same_interval(server: Server) -> None:
    rows = server.json("api/draw", {"of": "train"})["rows"]
    for row in rows[:60]:
        server.json("api/decide", {"what": "keep", "rows": [row], "queue": "measure"})
    shown = server.json("api/figures")
    assert any(text.startswith("Based on 60 decisions, 0.0 % to ") for text in shown["sentences"])
    told = run("audit", server.run.name, folder=server.run.parent).stdout
    audit = run_json("audit", server.run.name, folder=server.run.parent)
    assert audit["estimated_noise_rate_low"] == 0
    assert audit["estimated_noise_rate_high"] < 0.4
    for text in shown["sentences"]:
        assert text in told
        assert text in Path(server.run / "report.html").read_text()
