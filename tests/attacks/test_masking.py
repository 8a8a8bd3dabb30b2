"""Warnings of gradient masking: for masked gradients, and not for informative ones."""

import pytest

from selfadapt.attacks.masking import masking_warnings


def test_an_honest_network_is_not_accused() -> None:
    assert masking_warnings(0.5, square=0.56, transfer=0.8, one_step=0.57, large_radius=0.0) == []
    assert masking_warnings(0.5, square=0.495) == []  # chance
    assert masking_warnings(0.0, one_step=0.0, large_radius=0.0) == []
    assert masking_warnings(0.5) == []


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        ({"square": 0.4}, "40.0% under the Square attack"),
        ({"transfer": 0.3}, "30.0% under a transfer attack"),
        ({"one_step": 0.5}, "more steps do not help"),
        ({"one_step": 0.45}, "more steps do not help"),
        ({"large_radius": 0.2}, "20.0% under a radius"),
    ],
)
def test_each_sign_is_named(measured: dict[str, float], words: str) -> None:
    (warning,) = masking_warnings(0.5, **measured)
    assert words in warning
