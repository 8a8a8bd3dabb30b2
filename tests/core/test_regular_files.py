"""What is not a regular file is refused before it is opened."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from selfadapt.core.errors import UserError
from selfadapt.core.regular_files import check_regular, check_tree, open_regular, read_regular


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


ODD: dict[str, Callable[[Path], None]] = {
    "a FIFO": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a socket": _socket,
    "a folder": Path.mkdir,
}


@pytest.mark.parametrize("kind", ODD)
def test_what_would_block_or_never_end_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "odd"
    ODD[kind](path)
    with pytest.raises(UserError, match=f"odd is {kind}"):
        check_regular(path)
    with pytest.raises((UserError, OSError), match=r"odd is|No such device"):  # a socket cannot be opened at all
        open_regular(path)


def test_files_links_to_files_and_missing_files_pass(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.touch()
    link.symlink_to(file)
    for path in (file, link, tmp_path / "missing"):
        check_regular(path)


def test_a_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"1234")
    assert read_regular(file, most=4) == b"1234"
    with pytest.raises(UserError, match="file has 4 bytes, more than the 3 that it may have"):
        read_regular(file, most=3)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "missing")


def test_a_tree_of_files_and_folders_passes_through_a_link_to_it(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoint").mkdir(parents=True)
    (tmp_path / "run" / "checkpoint" / "model").touch()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    check_tree(tmp_path / "run")
    check_tree(tmp_path / "link")


@pytest.mark.parametrize("place", ["labels.csv", ".lock", "figures", "checkpoint/00001"])
def test_a_link_anywhere_in_a_tree_is_refused_by_name(place: str, tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (run / place).parent.mkdir(parents=True)
    (run / place).symlink_to(elsewhere)
    with pytest.raises(UserError, match=f"{place} is a symbolic link"):
        check_tree(run)


def test_a_file_that_vanishes_meanwhile_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes of a run write and rename temporary files."""
    (tmp_path / "draft").touch()
    (tmp_path / "folder").mkdir()
    scan = os.scandir

    @contextmanager
    def vanishing(folder: Path) -> "Iterator[list[os.DirEntry[str]]]":
        with scan(folder) as entries:
            found = list(entries)
        (tmp_path / "draft").unlink(missing_ok=True)
        yield found

    monkeypatch.setattr(os, "scandir", vanishing)
    check_tree(tmp_path)
    assert not (tmp_path / "draft").exists()
