"""Summaries of a table of accuracies against hand-computed numbers."""

import pytest

from selfadapt.core.errors import UserError
from selfadapt.data.imagenet_c.corruptions import KINDS, LEVELS
from selfadapt.evaluation.corruption_accuracy import (
    corruption_errors,
    corruption_table,
    mean_accuracy,
    mean_by_level,
)

OURS = {"fog": {1: 0.9, 2: 0.8}, "snow": {1: 0.7, 2: 0.4}}
OTHERS = {"fog": {1: 0.8, 2: 0.6}, "snow": {1: 0.8, 2: 0.5}}


def test_means_are_taken_over_kinds() -> None:
    assert mean_by_level(OURS) == pytest.approx({1: 0.8, 2: 0.6})
    assert mean_accuracy(OURS) == pytest.approx(0.7)


def test_the_corruption_error_is_a_ratio() -> None:
    assert corruption_errors(OURS, OTHERS) == pytest.approx({"fog": 0.3 / 0.6, "snow": 0.9 / 0.7})
    assert corruption_errors(OURS, OURS) == pytest.approx({"fog": 1, "snow": 1})
    faultless = {"fog": {1: 1.0}}
    assert corruption_errors(faultless, faultless) == {"fog": 1}
    assert corruption_errors({"fog": {1: 0.5}}, faultless) == {"fog": float("inf")}


def test_runs_under_other_kinds_cannot_be_compared() -> None:
    with pytest.raises(UserError, match="same kinds and levels"):
        corruption_errors(OURS, {"fog": {1: 0.8, 2: 0.6}})


def test_every_kind_is_measured_at_every_level() -> None:
    seen: list[tuple[int, int]] = []
    table = corruption_table(lambda kind, level: len(kind) + level, on_progress=lambda *at: seen.append(at))
    assert tuple(table) == KINDS
    assert all(row == {level: len(kind) + level for level in LEVELS} for kind, row in table.items())
    assert seen[-1] == (75, 75)
    assert len(seen) == 75
