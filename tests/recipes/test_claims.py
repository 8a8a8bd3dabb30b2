"""What the paper claims, judged on measured rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import budgets, verdicts
from scipy import stats

from selfadapt.recipes.claim import Cells, Claim, judge
from selfadapt.recipes.index import RECIPES
from selfadapt.recipes.paper_claims import PAPER_CLAIMS

CLAIM = Claim(statement="a is above b", higher=Cells(row="a"), lower=Cells(row="b"))
PAGE = Path(__file__).parents[2] / "docs" / "results" / "reproduced.md"


def _rows(values: dict[tuple[str, str], list[float]]) -> list[dict[str, Any]]:
    """Rows from (row, column) and the values of each seed."""
    return [
        {"part": "", "row": row, "column": column, "seed": seed, "measured": value}
        for (row, column), own in values.items()
        for seed, value in enumerate(own)
    ]


def test_the_test_is_a_paired_t_test_of_the_means_over_cells() -> None:
    generator = np.random.default_rng(0)
    values = {(row, column): generator.normal(row == "a", 1, 5).tolist() for row in "ab" for column in ("x", "y", "z")}
    means = {row: np.mean([values[row, column] for column in ("x", "y", "z")], axis=0) for row in "ab"}
    found = judge(CLAIM, _rows(values))
    assert found.p == pytest.approx(stats.ttest_rel(means["a"], means["b"], alternative="greater").pvalue)
    assert found.difference == pytest.approx(float((means["a"] - means["b"]).mean()))
    above = sum(np.mean(values["a", column]) > np.mean(values["b", column]) for column in ("x", "y", "z"))
    assert (found.cells, found.cells_above, found.seeds) == (3, above, 5)


def test_cells_are_compared_only_where_both_were_measured() -> None:
    found = judge(CLAIM, _rows({("a", "x"): [3.0, 4.0], ("a", "y"): [9.0, 9.0], ("b", "x"): [1.0, 1.5]}))
    assert (found.difference, found.cells) == (2.25, 1)


def test_a_fixed_column_is_averaged_over() -> None:
    ends = Claim(statement="", higher=Cells(column="middle"), lower=Cells(column=("left", "right")))
    rows = _rows({("a", "left"): [1.0], ("a", "middle"): [4.0], ("a", "right"): [2.0]})
    assert judge(ends, rows).difference == 2.5


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ([2.0], [1.0], "not tested"),
        ([1.0], [2.0], "not shown"),
        ([2.0, 2.1, 2.2], [1.0, 1.0, 1.1], "shown"),
        ([2.0, 2.1, 2.2], [2.1, 2.0, 2.2], "not shown"),
        ([2.0, 2.0], [1.0, 1.0], "shown"),
        ([], [], "not run"),
    ],
)
def test_verdicts(a: list[float], b: list[float], verdict: str) -> None:
    assert judge(CLAIM, _rows({("a", "x"): a, ("b", "x"): b})).verdict == verdict


def test_a_claim_about_several_cells_is_shown_only_if_it_holds_in_each() -> None:
    rows = _rows({("a", "x"): [9.0, 9.1], ("a", "y"): [1.0, 1.0], ("b", "x"): [1.0, 1.0], ("b", "y"): [2.0, 2.0]})
    found = judge(CLAIM, rows)
    assert found.p is not None
    assert found.p < 0.05
    assert (found.cells_above, found.cells, found.verdict) == (1, 2, "shown on average")


@pytest.mark.parametrize("below", [True, False])
def test_a_single_cell_is_compared_with_each_of_the_others(below: bool) -> None:
    one, others = Cells(part="", row="b", column="x"), Cells(row="a")
    claim = Claim(statement="", higher=others if below else one, lower=one if below else others)
    found = judge(claim, _rows({("a", "x"): [3.0], ("a", "y"): [5.0], ("b", "x"): [4.0], ("b", "y"): [100.0]}))
    assert (found.difference, found.cells, found.cells_above) == (0.0, 2, 1)


def test_a_number_to_exceed() -> None:
    above = Claim(statement="", higher=Cells(row="a"), lower=95.0)
    assert judge(above, _rows({("a", "x"): [96.0, 97.0, 99.0]})).difference == pytest.approx(97 - 95 + 1 / 3)


@pytest.mark.parametrize("name", PAPER_CLAIMS)
def test_every_claim_can_be_judged_at_laptop_scale(name: str) -> None:
    rows = [
        {"part": entry.part, "row": entry.row, "column": entry.column, "seed": 0, "measured": 1.0}
        for entry in RECIPES[name].laptop.entries
        if entry.trial is not None
    ]
    for claim in PAPER_CLAIMS[name]:
        assert judge(claim, rows).cells, claim.statement


def test_the_page_has_the_verdicts_of_its_rows_and_the_budgets() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert verdicts.table() in page
    assert budgets.table() in page
