"""Files and folders appear under their names only when they are complete."""

import os
import time
from pathlib import Path

import pytest

from selfadapt.core.atomic_files import atomic_folder, atomic_path, atomic_write, fsync_path
from selfadapt.core.errors import UserError


def test_a_file_is_replaced_only_after_the_block(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with atomic_write(path) as file:
        file.write("nëw")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text(encoding="utf-8") == "nëw"
    assert [found.name for found in tmp_path.iterdir()] == ["a.txt"]


def test_after_an_error_the_old_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError), atomic_write(path) as file:
        file.write("half \udcff")
    assert path.read_text() == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["a.txt"]


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "target.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(tmp_path / "target.txt")
    with atomic_path(tmp_path / "link.txt") as draft:
        draft.write_text("new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "target.txt").read_text() == "new"


def test_a_prepared_link_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("safe")
    (tmp_path / ".draft-labels.csv").symlink_to(tmp_path / "victim")
    with atomic_write(tmp_path / "labels.csv") as file:
        file.write("new")
    assert (tmp_path / "victim").read_text() == "safe"
    assert (tmp_path / "labels.csv").read_text() == "new"


def test_files_of_killed_processes_are_removed_and_recent_ones_stay(tmp_path: Path) -> None:
    old, recent = tmp_path / ".draft-0123-labels.csv", tmp_path / ".draft-4567-labels.csv"
    old.touch()
    recent.touch()
    os.utime(old, (time.time() - 7200,) * 2)
    with atomic_write(tmp_path / "labels.csv") as file:
        file.write("new")
    assert (old.exists(), recent.exists()) == (False, True)


def test_a_path_that_cannot_be_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    for path, message in (
        (tmp_path, "is a folder; give the name of a file"),
        (tmp_path / "plain" / "a.txt", "cannot be written: Not a directory"),
        (Path("/dev/null"), "is not a regular file"),
    ):
        with pytest.raises(UserError, match=message), atomic_write(path) as file:
            file.write("x")


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    final = tmp_path / "deep" / "set"
    with pytest.raises(UnicodeEncodeError), atomic_folder(final) as draft:
        (draft / "half").write_text("half \udcff", encoding="utf-8")
    assert list(final.parent.iterdir()) == []
    for content in ("first", "second"):
        with atomic_folder(final) as draft:
            (draft / content).write_text(content)
        fsync_path(final)
        assert [path.name for path in final.iterdir()] == [content]
    assert list(final.parent.iterdir()) == [final]
