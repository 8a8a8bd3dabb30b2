"""Duplicates with different labels are one item: shown side by side, decided together, marked where they disagree."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from review.reviewed import Server, label_rows, report_on, serving
from review.test_browser import open_page
from selfadapt.data.duplicates.groups import DuplicateGroup
from selfadapt.evaluation.label_errors.report import LabelErrorReport
from selfadapt.report.page import write_run_page
from selfadapt.review.conflicts import conflicts_of
from selfadapt.review.journal import Journal
from selfadapt.review.queues import Desk
from selfadapt.review.row_filter import Filter
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.inspect.label_sheets import _conflicts
from selfadapt.runs.lifecycle.opened_run import open_folder

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Groups = list[DuplicateGroup[str]]


def _write(run: Path, groups: list[tuple[list[dict[str, str]], str]]) -> None:
    rows = [
        (str(number), row["id"], row["path"], row["part"], row["given"], kind)
        for number, (members, kind) in enumerate(groups, start=1)
        for row in members
    ]
    RunFolder(run).write_duplicates(rows)


@pytest.fixture
def members(shapes_run: Path) -> list[dict[str, str]]:
    """A run with one conflict, of two likely errors and another label; one scene; and duplicates that agree."""
    rows = label_rows(shapes_run)
    suspects = [row for row in rows if row["suspect"] == "1" and row["part"] == "train"]
    right = [row for row in rows if row["suspect"] == "0"]
    first, second = suspects[0], next(row for row in suspects[1:] if row["given"] == suspects[0]["given"])
    other = next(row for row in right if row["given"] != first["given"])
    scene = [suspects[-1], next(row for row in right if row["given"] != suspects[-1]["given"] and row is not other)]
    same = [row for row in right if row["given"] == other["given"] and row is not other][:2]
    _write(shapes_run, [([other, second, first], "same image"), (scene, "same scene"), (same, "same file")])
    return [first, second, other]


@pytest.fixture
def conflicting(members: list[dict[str, str]], shapes_run: Path) -> Iterator[Server]:
    with serving(shapes_run) as own:
        yield own


def _report(given: list[int], suspect: list[bool]) -> LabelErrorReport:
    made = report_on(given, classes=("a", "b", "c"), ids=[str(i) for i in range(len(given))])
    return replace(made, is_error=np.array(suspect))


@pytest.mark.parametrize(
    ("given", "suspect", "disagreeing"),
    [
        ([0, 1, 1], [True, False, False], {0}),
        ([0, 0, 1], [True, True, False], {0, 1}),
        ([0, 1, 1], [False] * 3, {0}),
        ([0, 1], [False] * 2, {0}),
        ([0, 1, 2, 2], [False] * 4, {0, 1}),
    ],
)
def test_likely_errors_disagree_else_the_minority(given: list[int], suspect: list[bool], disagreeing: set[int]) -> None:
    ids = tuple(str(i) for i in range(len(given)))
    report = _report(given, suspect)
    (found,) = conflicts_of(report, [DuplicateGroup(ids, "same image")])
    assert found.rows == tuple(range(len(given)))
    assert set(found.disagreeing) == disagreeing
    assert not conflicts_of(report, [DuplicateGroup(ids, "same scene")])
    assert not conflicts_of(_report([1] * len(given), suspect), [DuplicateGroup(ids, "same file")])


def test_a_group_is_one_item_that_is_decided_and_undone_together(
    members: list[dict[str, str]], shapes_run: Path
) -> None:
    desk = Desk(RunFolder(shapes_run), "ann")
    rows = [desk.report.position[own["id"]] for own in members]
    shown = desk.rows(Filter())
    assert (rows[0] in shown, rows[1] in shown) == (True, False)
    assert len(shown) == int(desk.report.is_error.sum()) - 1
    (sample,) = desk.samples([rows[0]])
    assert {own["row"]: own["disagrees"] for own in sample["duplicates"]} == {
        rows[0]: True,
        rows[1]: True,
        rows[2]: False,
    }
    done = desk.decide("accept", [rows[0]])
    assert sorted(done["rows"]) == sorted(rows)
    for own in members:
        decision = desk.journal.decision(own["id"])
        assert decision is not None
        assert (decision.label, decision.individual) == (own["suggested"], True)
    assert desk.counts()["decided"] == 3
    desk.undo()
    assert desk.counts()["decided"] == 0
    desk.decide("keep", [rows[1]], queue="measure")
    assert desk.counts()["decided"] == 1, "to measure, each is by itself"
    desk.decide("accept", shown[:4])
    first = desk.journal.decision(members[0]["id"])
    assert first is not None
    assert not first.individual, "several items at once"
    desk.close()
    assert len(Desk(RunFolder(shapes_run), "ann").journal.decisions) == 6


def test_the_report_shows_a_group_with_all_its_labels(members: list[dict[str, str]], shapes_run: Path) -> None:
    page = write_run_page(RunFolder(shapes_run)).read_text()
    section = page.split("<h2>Duplicates with different labels</h2>")[1].split("</table>")[0]
    lines = section.split("<tr")[2:]
    assert len(lines) == 3
    for own in members:
        (line,) = (text for text in lines if own["path"].rpartition("/")[2].split(".")[0] in text)
        assert (' class="marked"' in line) == (own["suspect"] == "1")
    folder = RunFolder(shapes_run)
    for path in (folder.duplicates_file, folder.duplicates_sheet):
        folder.remove(path)
    assert "Duplicates with different labels" not in write_run_page(folder).read_text()


def test_the_sheet_has_a_line_for_each_group(members: list[dict[str, str]], trained_shapes: Path) -> None:
    folder = RunFolder(trained_shapes)
    data = open_folder(folder).data
    groups: Groups = [DuplicateGroup(tuple(own["id"] for own in members), "same image")]
    (block,) = _conflicts(folder, replace(data, duplicates=groups))
    assert [cell.framed for cell in block] == [True, True, False]
    assert [cell.caption for cell in block] == [f"{own['given']} ({own['part']})" for own in members]


@pytest.mark.browser
def test_the_page_shows_a_group_side_by_side(
    browser: "Browser", conflicting: Server, members: list[dict[str, str]]
) -> None:
    page = open_page(browser, conflicting)
    page.wait_for_function("() => document.querySelectorAll('.cell .members').length === 1")
    figures = page.query_selector_all(".cell .members figure")
    assert [own.get_attribute("title") for own in figures] == [own["id"] for own in members]
    assert [own.inner_text() for own in figures] == [own["given"] for own in members]
    assert [own.get_attribute("class") for own in figures] == ["disagrees", "disagrees", ""]
    page.locator(".cell:has(.members)").dblclick()
    page.wait_for_selector("#one .members figure")
    assert page.locator("#one .members figure.disagrees").count() == 2
    assert "3 duplicates with different labels, decided together" in page.inner_text("#one .facts")
    page.keyboard.press("a")
    page.wait_for_function("() => document.getElementById('progress').textContent.includes('; 3 decisions')")
    page.wait_for_function("() => document.querySelector('#figures tr:last-child td:last-child').textContent === '3'")
    decisions = Journal.read(RunFolder(conflicting.run).journal_file).decisions
    assert {name: own.label for name, own in decisions.items()} == {own["id"]: own["suggested"] for own in members}
    page.keyboard.press("u")
    page.wait_for_function("() => document.getElementById('progress').textContent.includes('; 0 decisions')")
    assert page.troubles == []  # type: ignore[attr-defined]


@pytest.mark.browser
def test_a_duplicate_with_the_same_label_is_shown_beside_its_twin(
    browser: "Browser", conflicting: Server, members: list[dict[str, str]]
) -> None:
    page = open_page(browser, conflicting)
    page.select_option("#show", "duplicates")
    page.select_option("#state", "any")
    count = len(conflicting.json("api/rows?show=duplicates&state=any")["rows"])
    page.wait_for_function("count => document.querySelectorAll('.cell .id').length === count", arg=count)
    last = page.locator(".cell").last
    shown = last.locator(".id").inner_text()
    last.dblclick()
    page.wait_for_selector("#one .members figure")
    assert page.locator("#one .members figure").count() == 2
    assert page.locator("#one .members figure").first.get_attribute("title") == shown
    assert "this sample" in page.inner_text("#one .members figure:first-child")
    assert "duplicate" in page.inner_text("#one .members figure:last-child")
    assert page.locator("#one .members figure.disagrees").count() == 0
    assert page.troubles == []  # type: ignore[attr-defined]
