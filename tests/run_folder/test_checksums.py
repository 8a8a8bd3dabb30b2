"""Checksums of the files that only the program writes."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from run_folder.tiny_run import RUN
from selfadapt.core.atomic_files import atomic_path
from selfadapt.core.errors import UserError
from selfadapt.run_folder import checksums
from selfadapt.run_folder.folder import RunFolder

FILE = "b.json"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path)
    folder.write_json(tmp_path / FILE, {"x": 1})
    return folder


def read(folder: RunFolder) -> Any:
    return folder.read_json(folder.path / FILE, dict[str, int])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_text('{"x": 2}'), "was changed after it was written"),
        (lambda path: path.write_text(""), "was changed after it was written"),
        (Path.unlink, "is missing"),
    ],
)
def test_a_file_that_was_changed_or_deleted_is_named(
    damage: Callable[[Path], None], message: str, folder: RunFolder
) -> None:
    damage(folder.path / FILE)
    with pytest.raises(UserError, match=f"{FILE} {message}: it does not match checksums.json; restore it"):
        read(folder)
    with pytest.raises(UserError, match=message):
        folder.check_recorded(folder.path / FILE)
    folder.write_json(folder.path / FILE, {"x": 3})  # as the command that wrote it does
    assert read(folder) == {"x": 3}


def test_a_cache_may_be_deleted_but_not_changed(folder: RunFolder) -> None:
    path = folder.path / "cache" / "a.json"
    folder.write_json(path, {"x": 1})
    path.write_text('{"x": 2}')
    with pytest.raises(UserError, match="was changed after it was written"):
        folder.read_json(path, dict[str, int])
    path.unlink()
    assert folder.read_json(path, dict[str, int]) is None


def test_a_contact_sheet_is_not_a_cache(folder: RunFolder) -> None:
    """Only `audit` draws it, so a report without it would be incomplete."""
    with folder.recorded(folder.errors_sheet) as draft:
        draft.write_text("<svg/>")
    folder.errors_sheet.unlink()
    with pytest.raises(UserError, match=r"suspects\.svg is missing"):
        folder.check_recorded(folder.errors_sheet)


def test_a_file_that_is_removed_or_was_never_written_is_none(folder: RunFolder) -> None:
    folder.remove(folder.path / FILE)
    assert read(folder) is None
    assert json.loads((folder.path / "checksums.json").read_text()) == {}
    folder.remove(folder.path / FILE)


def test_a_run_without_checksums_opens_with_one_warning(folder: RunFolder) -> None:
    folder.write_run(RUN)
    (folder.path / "checksums.json").unlink()
    with pytest.warns(UserWarning, match="has no checksums, as an earlier version made it") as warned:
        opened = [folder.read_run() for _ in range(2)]
    assert len(warned) == 1
    assert opened[0] == opened[1]
    assert read(folder) == {"x": 1}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"b.json": "x"}', b'{"b.json": [1]}', b"[" * 100_000])
def test_damaged_checksums_are_named(content: bytes, folder: RunFolder) -> None:
    (folder.path / "checksums.json").write_bytes(content)
    with pytest.raises(UserError, match=r"checksums.json is damaged: .*; restore it, or delete it"):
        read(folder)


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("done", [0, 1, 2])
def test_a_crash_after_any_step_leaves_a_readable_state(
    done: int, is_new: bool, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The three steps: the new checksum is added, the file is replaced, the old checksum is removed."""
    if is_new:
        folder.remove(folder.path / FILE)
    before, write, writes = read(folder), checksums._write, 0

    def crashing_write(*given: Any) -> None:
        nonlocal writes
        if done == 2 * writes:
            raise KeyboardInterrupt
        writes += 1
        write(*given)

    @contextmanager
    def crashing_replace(path: Path) -> Iterator[Path]:
        with atomic_path(path) as draft:
            yield draft
            if done == 1:
                raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(checksums, "_write", crashing_write)
        patched.setattr(checksums, "atomic_path", crashing_replace)
        with pytest.raises(KeyboardInterrupt):
            folder.write_json(folder.path / FILE, {"x": 2})
    assert read(folder) == ({"x": 2} if done == 2 else before)
    folder.write_json(folder.path / FILE, {"x": 3})
    assert read(folder) == {"x": 3}


def test_writers_and_readers_at_once_see_no_damage(folder: RunFolder) -> None:
    """Two commands may write files of one run while a third reads them."""
    failed: list[BaseException] = []

    def repeat(action: Callable[[int], Any]) -> None:
        try:
            for number in range(40):
                action(number)
        except BaseException as error:
            failed.append(error)

    actions: list[Callable[[int], Any]] = [
        lambda number: folder.write_json(folder.path / FILE, {"x": number}),
        lambda number: folder.write_json(folder.path / "c.json", {"x": number}),
        lambda number: read(folder),
        lambda number: folder.read_json(folder.path / "c.json", dict[str, int]),
    ]
    threads = [threading.Thread(target=repeat, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
