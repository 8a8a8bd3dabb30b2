"""Locks, with the system's own and on a file system that has none."""

import errno
import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from selfadapt.core import file_lock
from selfadapt.core.file_lock import exclusive


@pytest.fixture(params=["flock", errno.ENOSYS, errno.ENOTSUP])
def lock(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if request.param != "flock":

        def refused(*_: object) -> None:
            raise OSError(request.param, os.strerror(request.param))

        monkeypatch.setattr(fcntl, "flock", refused)
    return tmp_path / "folder" / ".lock"


def test_one_holds_it_until_the_block_ends(lock: Path) -> None:
    with exclusive(lock) as held, exclusive(lock, wait=False) as second:
        assert (held, second) == (True, False)
    assert not list(lock.parent.iterdir()), "nothing stays"
    with exclusive(lock, wait=False) as held:
        assert held
    with pytest.raises(OSError, match="of the block"), exclusive(lock):
        raise OSError("of the block")
    assert not list(lock.parent.iterdir())


def _owner(lock: Path, host: str, process: int) -> None:
    lock.parent.mkdir()
    lock.touch()
    lock.with_name(f"{lock.name}.owner").write_text(f"{host} {process}")


@pytest.mark.parametrize(
    ("host", "age", "free"),
    [
        pytest.param("here", 0, True, id="a process that died on this host"),
        pytest.param("elsewhere", 10, False, id="another host that refreshes it"),
        pytest.param("elsewhere", 1000, True, id="another host that has stopped refreshing it"),
    ],
)
def test_a_lock_whose_owner_died_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, age: float, free: bool
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refused)
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        pass
    lock = tmp_path / "folder" / ".lock"
    _owner(lock, socket.gethostname() if host == "here" else host, dead.pid)
    owner = lock.with_name(".lock.owner")
    time = owner.stat().st_mtime - age
    os.utime(owner, (time, time))
    with exclusive(lock, wait=False) as held:
        assert held == free
        assert owner.read_text().startswith(socket.gethostname() if free else "elsewhere")


def test_the_owner_file_is_refreshed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refused)
    monkeypatch.setattr(file_lock, "_REFRESH_SECONDS", 0.01)
    lock = tmp_path / ".lock"
    with exclusive(lock):
        owner = lock.with_name(".lock.owner")
        os.utime(owner, (1, 1))
        while owner.stat().st_mtime == 1:
            pass


def test_where_no_file_can_be_created_the_block_runs_without_a_lock(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with exclusive(tmp_path / "file" / ".lock") as held:
        assert not held
