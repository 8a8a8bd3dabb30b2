"""The last handler of the program: what nothing else expected."""

import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

from cli.program import run


def test_an_unexpected_error_is_one_line_and_its_traceback_is_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(arguments: object) -> NoReturn:
        raise ZeroDivisionError("odd\nerror")

    monkeypatch.setattr("selfadapt.cli.app._register", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = run("doctor", folder=tmp_path)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert result.stderr.startswith("error: unexpected ZeroDivisionError: odd error; this is a bug in selfadapt")
    (trace,) = tmp_path.glob("selfadapt-*-traceback.txt")
    assert result.stderr.rstrip().endswith(str(trace))
    assert "in fail" in trace.read_text()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    assert "could not be written" in run("doctor", folder=tmp_path).stderr


def test_a_lack_of_memory_is_reported_without_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: object) -> NoReturn:
        raise MemoryError

    monkeypatch.setattr("selfadapt.cli.app._register", fail)
    result = run("doctor", folder=tmp_path)
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    assert result.stderr.startswith("error: there is not enough memory")


def test_a_file_that_cannot_be_read_is_named_with_exit_code_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: object) -> NoReturn:
        raise IsADirectoryError(21, "Is a directory", "x.csv")

    monkeypatch.setattr("selfadapt.cli.app._register", fail)
    result = run("doctor", folder=tmp_path)
    assert (result.returncode, result.stderr) == (2, "error: x.csv cannot be read or written: Is a directory\n")


def test_without_a_temporary_folder_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: object) -> NoReturn:
        monkeypatch.setattr("tempfile.tempdir", None)
        monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: [str(tmp_path / "missing")])
        tempfile.mkdtemp()
        raise AssertionError

    monkeypatch.setattr("selfadapt.cli.app._register", fail)
    result = run("doctor", folder=tmp_path)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "a file cannot be read or written: No usable temporary directory found in" in result.stderr
