"""Progressive resizing, as a user gives it."""

import pytest

from selfadapt.errors import UserError
from selfadapt.runs.parts import parse_progressive
from selfadapt.runs.settings import RunSettings


def test_sizes_and_the_shares_up_to_which_they_hold() -> None:
    assert parse_progressive(None) == ()
    assert parse_progressive("24:0.5") == ((24, 0.5),)
    assert parse_progressive("16:0.25,24:0.5") == ((16, 0.25), (24, 0.5))


@pytest.mark.parametrize(
    "text", ["", "24", "24:", "0:0.5", "24:0", "24:1.5", "24:0.5,28:0.5", "28:0.5,24:0.25", "a:0.5"]
)
def test_what_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is not SIZE:SHARE"):
        RunSettings.given(data="digits", progressive=text)
