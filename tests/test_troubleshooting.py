"""The page of error messages quotes what the program says."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

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
