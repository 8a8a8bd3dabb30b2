"""Exclusive locks on files. The system releases one when its file is closed or its process ends.

Some network file systems have no such locks. There, a file NAME.owner beside the locked one says which process on which
host holds the lock; it is refreshed while the lock is held. If the process no longer exists, or on another host has not
refreshed the file for `_STALE_SECONDS`, the lock is free. Such a lock is released by `release_lock` or at exit.
"""

import atexit
import errno
import fcntl
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_UNSUPPORTED = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK})
_REFRESH_SECONDS = 20.0
_STALE_SECONDS = 300.0
_POLL_SECONDS = 0.1
_owned: dict[Path, tuple[int, threading.Event]] = {}  # process and the end of refreshing, by path of the owner file


def take_lock(descriptor: int, path: Path) -> bool:
    """Lock the open file of this path without waiting.

    Returns:
        False if another process holds the lock, or has removed or replaced the file meanwhile.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return _take_ownership(path)
    return is_file_at(descriptor, path)


def is_file_at(descriptor: int, path: Path) -> bool:
    """Return whether this open file still has this path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def release_lock(path: Path) -> None:
    """Release a lock that the system does not release when the file is closed."""
    process, stop = _owned.pop(_owner_file(path), (-1, threading.Event()))
    stop.set()
    if process == os.getpid():
        _owner_file(path).unlink(missing_ok=True)


@contextmanager
def exclusive(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of this file, which is removed in the end; yields whether it is held.

    With `wait`, the block runs without a lock where the file cannot be created.
    """
    descriptor = _locked(path, wait)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            path.unlink(missing_ok=True)
            release_lock(path)
            os.close(descriptor)


def _locked(path: Path, wait: bool) -> int | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            if take_lock(descriptor, path):
                return descriptor
            os.close(descriptor)
            if not wait:
                return None
            time.sleep(_POLL_SECONDS)
    except OSError:
        return None


def _owner_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.owner").absolute()


def _take_ownership(path: Path) -> bool:
    owner = _owner_file(path)
    abandoned = _abandoned(owner, path)
    if abandoned is not None and not _remove(owner, abandoned):
        return False
    try:
        descriptor = os.open(owner, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    except FileExistsError:
        return False
    with open(descriptor, "w") as file:
        file.write(f"{socket.gethostname()} {os.getpid()}")
    stop = threading.Event()
    _owned[owner] = os.getpid(), stop
    threading.Thread(target=_refresh, args=(owner, stop), daemon=True).start()
    return True


def _refresh(owner: Path, stop: threading.Event) -> None:
    while not stop.wait(_REFRESH_SECONDS):
        with suppress(OSError):
            os.utime(owner)


def _abandoned(owner: Path, path: Path) -> str | None:
    """Return the content of an owner file whose process no longer holds the lock; None if there is no such file."""
    try:
        content = owner.read_text()
        os.utime(path)  # gives the time by the clock of the file system, which also dates the owner file
        age = path.stat().st_mtime - owner.stat().st_mtime
    except FileNotFoundError:
        return None
    host, _, process = content.partition(" ")
    if host == socket.gethostname() and process.isdigit():
        return None if _exists(int(process)) else content
    return content if age > _STALE_SECONDS else None


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _remove(owner: Path, content: str) -> bool:
    """Remove an abandoned owner file, unless another process has just replaced it."""
    aside = owner.with_name(f"{owner.name}-{socket.gethostname()}-{os.getpid()}")
    try:
        owner.rename(aside)
        if aside.read_text() != content:
            aside.rename(owner)
            return False
        aside.unlink()
    except OSError:
        return False
    return True


@atexit.register
def _release_all() -> None:
    for owner in list(_owned):
        release_lock(owner.with_name(owner.name.removesuffix(".owner")))
