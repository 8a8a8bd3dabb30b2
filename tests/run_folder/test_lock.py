"""The lock of a run folder on a file system without locks, such as Lustre."""

import errno
import fcntl
import os
import socket
from pathlib import Path

import pytest

from selfadapt.core.errors import UserError
from selfadapt.run_folder.lock import LOCK_NAME, folder_lock


def test_without_flock_a_folder_is_locked_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refused)
    folder = tmp_path / "new" / "run"
    for _ in range(2):
        with folder_lock(folder, lambda: False):
            assert (folder / f"{LOCK_NAME}.owner").read_text() == f"{socket.gethostname()} {os.getpid()}"
        assert not (tmp_path / "new").exists(), "nothing stays of a folder that was not used"
    folder.mkdir(parents=True)
    owner = folder / f"{LOCK_NAME}.owner"
    owner.write_text(f"{socket.gethostname()} {os.getppid()}")  # a process that is there
    with pytest.raises(UserError, match="another process is training in"), folder_lock(folder, lambda: True):
        pass
    assert owner.exists()
