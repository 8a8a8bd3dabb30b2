"""Mistakes on the command line that scripts make: each is one line and exit code 2, and nothing is left behind."""

import io
import json
import os
import signal
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cli.program import outcome, run, run_json
from selfadapt.engine import checkpoint
from selfadapt.engine.checkpoint import Checkpoint
from selfadapt.run_folder.folder import RunFolder

SMALL = ("--method", "sat-paper", "--model", "mlp", "--width", "8", "--limit", "200", "--start-epoch", "1")


def _refused(folder: Path, *arguments: str) -> str:
    before = sorted(folder.rglob("*"))
    result = run(*arguments, folder=folder)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
    assert sorted(folder.rglob("*")) == before
    return result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        *((command, "") for command in ("train", "audit", "embed", "report", "labels", "review", "coverage")),
        ("predict", "run", ""),
        ("train", "digits", "--out", ""),
        ("train", "digits", "--out="),
    ],
)
def test_an_empty_argument_is_not_the_current_folder(arguments: tuple[str, ...], tmp_path: Path) -> None:
    assert "is empty; is a variable of the shell unset?" in _refused(tmp_path, *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "digits", "--width", "100000000"), "--width 100000000 must be at least 1 and at most 16384"),
        (("pretrain", "digits", "--method", "moco", "--queue", "1000000000000"), "--queue 1000000000000 must be"),
        (("train", "digits", *SMALL, "--out", "a" * 300), "File name too long"),
        (("train", "digits", *SMALL, "--out", os.fsdecode(b"\xff")), r"\udcff is not valid UTF-8"),
        (("train", os.fsdecode(b"\xff.npz")), r"\udcff.npz is not valid UTF-8"),
    ],
)
def test_impossible_values_are_refused_before_training(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    assert message in _refused(tmp_path, *arguments)


def test_a_folder_whose_name_is_not_text_is_refused_before_training(tmp_path: Path) -> None:
    """Where the name does not stand on the command line."""
    odd = tmp_path / os.fsdecode(b"\xff")
    odd.mkdir()
    np.savez(odd / "x.npz", x_train=np.zeros((20, 2), np.float32), y_train=np.arange(20) % 2)
    assert r"\udcff/x.npz: the file name is not valid UTF-8" in _refused(odd, "train", "x.npz")


@pytest.mark.parametrize("name", ["WORLD_SIZE", "RANK", "SELFADAPT_JOBS"])
def test_variables_of_a_launcher_must_be_numbers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "abc")
    assert f"the environment variable {name} is 'abc'" in _refused(tmp_path, "train", "digits")


def test_empty_tables_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").touch()
    for arguments in (("train", "empty.csv"), ("train", "digits", *SMALL, "--corrected", "empty.csv")):
        assert "empty.csv is empty; its first line must name the columns" in _refused(tmp_path, *arguments)


def test_a_label_of_thousands_of_digits_is_refused(tmp_path: Path) -> None:
    rows = [f"{k},{'9' * 5000 if k == 7 else k % 2}" for k in range(60)]
    (tmp_path / "data.csv").write_text("\n".join(["value,label", *rows]) + "\n")
    assert "has 5,000 characters; use at most 1,000" in _refused(tmp_path, "train", "data.csv")


def test_an_array_that_claims_a_hundred_gigabytes_is_refused(tmp_path: Path) -> None:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (25000000, 1000), }"
    header = header.ljust(117) + b"\n"
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(100)
    labels = io.BytesIO()
    np.save(labels, np.zeros(60, int))
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("x_train.npy", content)
        archive.writestr("y_train.npy", labels.getvalue())
    assert "data.npz cannot be read as an .npz file of plain arrays" in _refused(tmp_path, "train", "data.npz")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    run_json("train", "digits", *SMALL, "--epochs", "3", "--out", "run", folder=folder)
    return folder / "run"


def test_names_from_standard_input_need_not_be_text(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff.png\n"), encoding="utf-8"))
    result = run("predict", trained, "-", folder=tmp_path)
    assert result.returncode == 2
    assert "no prediction for any of 1 inputs" in result.stderr
    assert json.loads(result.stdout)["path"].endswith(".png")


def test_an_empty_table_of_decisions_is_named(trained: Path, tmp_path: Path) -> None:
    table = trained / "decisions.csv"
    table.touch()
    try:
        assert "decisions.csv is empty" in _refused(tmp_path, "labels", str(trained))
    finally:
        table.unlink()


def test_a_second_signal_while_saving_leaves_what_was_saved_before(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first comes while the second epoch is saved, the second one in the middle of the next save."""
    write, saves = checkpoint.save, 0

    def save(folder: Path, content: Checkpoint, **options: bool) -> Callable[[], None]:
        nonlocal saves
        saves += 1
        if saves == 2:
            signal.raise_signal(signal.SIGINT)
        if saves == 3:
            signal.raise_signal(signal.SIGINT)
        return write(folder, content, **options)

    command = ("train", "digits", *SMALL, "--epochs", "3", "--out", "run")
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save", save)
        result = run(*command, folder=tmp_path)
    assert result.returncode == 130
    assert "stopped at once by a second signal; saved: 2 epochs; resume with:" in result.stderr
    assert result.stderr.count("\n") == 1
    run_json(*command, "--resume", folder=tmp_path)
    assert outcome(tmp_path / "run") == outcome(trained)
    assert RunFolder(tmp_path / "run").read_run()["result"]["epochs"] == 3
