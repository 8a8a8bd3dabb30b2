"""JSON that is checked against types: the message names the field."""

import json
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfadapt.core.typed_json import Count, Finite, Share, Within, check, parse


class Part(TypedDict):
    share: Share | None
    rows: list[Annotated[int, Within(1, 9)]]


class Whole(TypedDict):
    kind: Literal["a", "b"]
    parts: dict[str, Part]
    count: Count
    size: float
    label: NotRequired[str]


GOOD: dict[str, Any] = {
    "kind": "a", "parts": {"x": {"share": None, "rows": [1, 9]}, "y": {"share": 1, "rows": []}}, "count": 0,
    "size": 2.5, "more": [],
}  # fmt: skip


def test_what_fits_passes_and_further_keys_are_allowed() -> None:
    check(GOOD, Whole)
    check({**GOOD, "label": "x", "size": 3}, Whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "c"}, "kind is 'c'; it must be 'a' or 'b'"),
        ({"count": True}, "count is True; it must be a whole number from 0 up to"),
        ({"count": -1}, "count is -1; it must be a whole number from 0 up to"),
        ({"size": "1"}, "size is '1'; it must be a number"),
        ({"size": 10**400}, "size is 1000"),
        ({"parts": []}, "parts is a list; it must be an object"),
        ({"parts": {"x": {"rows": []}}}, "parts.x.share is missing; it must be a number from 0 up to 1 or null"),
        ({"parts": {"x": {"share": float("nan"), "rows": []}}}, "parts.x.share is nan; it must be a number from 0"),
        ({"parts": {"x": {"share": 0, "rows": [1, 10]}}}, "parts.x.rows\\[1\\] is 10; it must be a whole number from"),
        ({"label": None}, "label is None; it must be a text"),
    ],
)
def test_the_first_field_that_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check({**GOOD, **change}, Whole)
    with pytest.raises(ValueError, match="the content is a list; it must be an object"):
        check([GOOD], Whole)


def test_a_union_reports_the_member_that_fits_best() -> None:
    with pytest.raises(ValueError, match=r"x\[1\] is 'a'; it must be a number, and finite"):
        check({"x": [1, "a"]}, dict[str, list[Finite] | None])


def test_what_is_nested_too_deeply_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse(b"[" * 200_000)


def test_half_a_surrogate_pair_is_a_value_error() -> None:
    assert parse(rb'{"x": "\ud83d\ude00", "y": "\\ud800"}') == {"x": "\U0001f600", "y": r"\ud800"}
    for text in (rb'["\ud800"]', rb'{"\uDfff": 1}'):
        with pytest.raises(ValueError, match="not valid Unicode"):
            parse(text)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(max_examples=50)
@given(anything)
def test_any_json_passes_or_is_a_value_error(value: Any) -> None:
    """And what passes as Any comes back as it was written."""
    parsed = parse(json.dumps(value).encode())
    check(parsed, Any)
    for kind in (Whole, Part, dict[str, Whole], list[Part]):
        try:
            check(parsed, kind)
        except ValueError:
            continue
        assert isinstance(parsed, dict | list)
