"""Settings: what follows from a field."""

from dataclasses import dataclass
from typing import Any

import pytest

from selfadapt.core.errors import UserError
from selfadapt.core.settings import check_settings, from_plain, plain, setting, settings_in


class Pair:
    def __init__(self, text: str) -> None:
        if ":" not in text:
            raise UserError(f"{text!r} must be two")
        self.ends = text.split(":")

    def __str__(self) -> str:
        return ":".join(self.ends)


@dataclass(frozen=True, kw_only=True)
class Example:
    share: float = setting(0.5, "a share", least=0, below=1)
    many: int | None = setting(None, "how many", above=0, unset="all")
    pair: Pair = setting(Pair("a:b"), "two", parse=Pair, option="--two", aliases=("--both",))
    hidden: int = 3

    def __post_init__(self) -> None:
        check_settings(self)


def test_what_a_user_may_set() -> None:
    found = settings_in(Example)
    assert list(found) == ["share", "many", "pair"]
    assert (found["share"].kind, found["many"].kind, found["pair"].kind) == (float, int, str)
    assert (found["share"].option, found["pair"].option) == ("--share", "--two")
    assert [own.summary() for own in found.values()] == ["0.5", "all", "a:b"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"share": 1.0}, "--share 1.0 must be at least 0 and below 1"),
        ({"share": float("nan")}, "--share nan must be at least 0"),
        ({"many": 0}, "--many 0 must be above 0"),
        ({"pair": "c"}, "--two 'c' must be two"),
        ({"hidden": 4}, "'hidden' is not a setting of Example"),
    ],
)
def test_a_value_out_of_bounds_is_told(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        from_plain(Example, values)


def test_to_plain_values_and_back() -> None:
    own = from_plain(Example, {"pair": "c:d", "many": 7})
    assert plain(own) == {"share": 0.5, "many": 7, "pair": "c:d"}
    assert plain(from_plain(Example, plain(own))) == plain(own)
