"""Pages that quote: the messages of the program, and the figures of docs/results."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sklearn.datasets import load_digits

ROOT = Path(__file__).parent.parent
_VALUE = "\0"


def _texts() -> Iterator[str]:
    """The texts in the source, with a placeholder for each value."""
    for path in (ROOT / "src" / "selfadapt").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else _VALUE for part in node.values)
                yield "".join(map(str, parts))


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return list(_texts())


def _is_said(quote: str, texts: list[str]) -> bool:
    pieces = re.sub(r"^(error|warning): ", "", quote).split("…")
    pattern = re.compile(".*".join(map(re.escape, pieces)), flags=re.DOTALL)
    return any(pattern.search(text) for text in texts)


def test_each_quoted_message_occurs_in_the_source(texts: list[str]) -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    quotes = re.findall(r"^    (.+)$", page, flags=re.MULTILINE)
    assert len(quotes) > 30
    assert [quote for quote in quotes if not _is_said(quote, texts)] == []


def test_a_message_that_changed_is_noticed(texts: list[str]) -> None:
    assert _is_said("error: … is not empty; …", texts)
    assert not _is_said("error: … is not empty; use --force", texts)
    assert not _is_said("error: the split … of … has two classes only", texts)


def _rows(page: str) -> dict[str, list[list[str]]]:
    """The rows of the tables of a page, without their first cell, by that cell."""
    found: dict[str, list[list[str]]] = {}
    for line in (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            found.setdefault(name, []).append(cells)
    return found


def test_the_figures_beside_cleanlab_are_those_measured() -> None:
    measured = _rows("results/label-errors-features.md")
    places = {3: (1, 2, 4), 7: (1, 2, 3, 4, 5, 6, 7)}  # columns there of the tables with so many here
    checked = 0
    for name, rows in _rows("cleanlab.md").items():
        for cells in (row for row in rows if " " in name and len(row) in places and name in measured):
            assert any(
                cells == [row[i] for i in places[len(cells)]]
                for row in measured[name]
                if len(row) > max(places[len(cells)])
            ), name
            checked += 1
    assert checked == 14


def test_python_on_the_page_about_cleanlab_runs() -> None:
    pytest.importorskip("cleanlab")
    text, names = (ROOT / "docs" / "cleanlab.md").read_text(encoding="utf-8"), dict[str, Any]()
    for snippet in re.findall(r"```python\n(.+?)```", text, flags=re.DOTALL):
        exec(compile(snippet, "cleanlab.md", "exec"), names)
    wrong = set((names["labels"] != load_digits().target).nonzero()[0].tolist())
    assert len(wrong) == 90
    for found in (names["errors"].tolist(), names["issues"].tolist()):
        assert len(wrong & set(found)) > 70
