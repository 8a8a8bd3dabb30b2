"""Exclusive locks on files. The system releases one when its file is closed or its process ends."""

import fcntl
import os
from pathlib import Path


def take_lock(descriptor: int, path: Path) -> bool:
    """Lock the open file of this path without waiting.

    Returns:
        False if another process holds the lock, or has removed or replaced the file meanwhile.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return is_file_at(descriptor, path)


def is_file_at(descriptor: int, path: Path) -> bool:
    """Return whether this open file still has this path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False
