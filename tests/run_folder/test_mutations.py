"""A damaged run gives the right answer or one line that names the file; `python -m benchmarks mutations` does more."""

import os
import re
from pathlib import Path
from random import Random

import pytest
from benchmarks.mutations import KINDS, Lab, call
from hypothesis import given, settings
from hypothesis import strategies as st

CHEAP = ("labels", "predict", "export", "review", "audit", "coverage", "calibrate")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("lab"))


@settings(max_examples=120)
@given(seed=st.integers(0, 2**32))
def test_no_damage_leads_to_a_wrong_answer_a_traceback_or_a_write_outside(lab: Lab, seed: int) -> None:
    assert lab.try_one(Random(seed), CHEAP) in ("right", "error", "accepted")


@settings(max_examples=5)
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


@pytest.mark.parametrize("content", [None, b'{"format": 1}'])
def test_a_lost_or_an_old_run_json_is_named(lab: Lab, content: bytes | None) -> None:
    """Also by `audit`, which takes data as well as runs."""

    def damage(run: Path) -> None:
        (run / "checksums.json").unlink()
        (run / "run.json").unlink()
        if content is not None:
            (run / "run.json").write_bytes(content)

    answer = lab._call("audit", damage)
    assert (answer.code, answer.errors.count("\n")) == (2, 1)
    assert "run.json" in answer.errors


@pytest.mark.parametrize("command", ["labels", "review", "report"])
def test_a_sample_that_labels_csv_names_wrongly_is_refused(lab: Lab, command: str) -> None:
    def damage(run: Path) -> None:
        header, row, rest = (run / "labels.csv").read_text().split("\n", 2)
        (run / "labels.csv").write_text(f"{header}\nx{row}\n{rest}")

    row = (lab.finished / "labels.csv").read_text().splitlines()[1]
    assert ",test," not in row
    answer = lab._call(command, damage)
    assert (answer.code, answer.errors.count("\n")) == (2, 1)
    assert f"labels.csv, line 2, column id: 'x{row.partition(',')[0]}' is not a sample of the run" in answer.errors


ODD = {
    "an image": ("predict", "run", "odd"),
    "an array": ("predict", "run", "odd.npy"),
    "a table": ("train", "odd.csv", "--out", "new"),
    "arrays": ("train", "odd.npz", "--out", "new"),
    "a row of a table": ("train", "list.csv", "--out", "new"),
    "labels": ("train", "digits", "--labels", "odd.npy", "--out", "new"),
    "a noise matrix": ("train", "digits", "--noise", "matrix:odd.csv", "--out", "new"),
    "weights": ("train", "digits", "--model", "tf_efficientnet_lite0", "--weights", "odd.pth", "--out", "new"),
}


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_no_command_waits_for_data_that_never_come(lab: Lab, what: str, kind: str) -> None:
    """A FIFO, or a link to a device that never ends, in place of a file that a user gives."""
    lab.right("predict")  # leaves an undamaged run
    (lab.home / "list.csv").write_text("path,label\nodd,a\nodd,b\n")
    for name in ("odd", "odd.npy", "odd.csv", "odd.npz", "odd.pth"):
        (lab.home / name).unlink(missing_ok=True)
        if kind == "fifo":
            os.mkfifo(lab.home / name)
        else:
            (lab.home / name).symlink_to("/dev/zero")
    answer = call(lab.home, ODD[what])
    assert (answer.code, answer.errors.count("\n")) == (2, 1), answer.errors
    assert re.search("odd|/dev/zero", answer.errors + answer.output)
    assert not (lab.home / "new").exists()
