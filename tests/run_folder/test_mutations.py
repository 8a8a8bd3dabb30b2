"""A damaged run gives the right answer or one line that names the file; `python -m benchmarks mutations` does more."""

from random import Random

import pytest
from benchmarks.mutations import KINDS, Lab
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CHEAP = ("labels", "predict", "export", "review", "audit", "coverage", "calibrate")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("lab"))


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32))
def test_no_damage_leads_to_a_wrong_answer_a_traceback_or_a_write_outside(lab: Lab, seed: int) -> None:
    assert lab.try_one(Random(seed), CHEAP) in ("right", "error", "accepted")


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32))
def test_neither_does_it_in_the_commands_that_take_longer(lab: Lab, seed: int) -> None:
    assert lab.try_one(Random(seed), [name for name in KINDS["images"][1] if name not in CHEAP]) in (
        "right",
        "error",
        "accepted",
    )


def test_an_undamaged_run_gives_the_right_answer(lab: Lab) -> None:
    for command in CHEAP:
        assert lab.right(command).code == 0
        assert lab.right(command) == lab._call(command)
    assert "checksums.json" in lab.files
    assert {"coverage.json", "calibration.json", "attack.json", "shift.json", "decisions.jsonl"} <= set(lab.files)
