"""The lock that keeps two processes from training in one folder."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from selfadapt.core import distributed
from selfadapt.core.errors import UserError
from selfadapt.core.file_lock import release_lock, take_lock
from selfadapt.core.regular_files import check_tree

LOCK_NAME = ".lock"
_HELD: set[Path] = set()  # folders that this process has locked


@contextmanager
def folder_lock(folder: Path, is_used: Callable[[], bool]) -> Iterator[None]:
    """Hold the lock of a folder, creating the folder if needed.

    Blocks may nest within one process. In distributed runs only rank 0 takes the lock. When the block ends and the
    folder is not used, the lock file is removed, together with the folders that were created and are empty.
    """
    place = folder.resolve()
    if distributed.rank() or place in _HELD:
        yield
        return
    created = [path for path in (place, *place.parents) if not path.exists()]
    with _open_lock_file(folder) as file:
        if not take_lock(file.fileno(), place / LOCK_NAME):
            raise UserError(f"another process is training in {folder}; wait for it or give another --out")
        _HELD.add(place)
        try:
            yield
        finally:
            _HELD.remove(place)
            release_lock(place / LOCK_NAME)
            if not is_used():
                (place / LOCK_NAME).unlink(missing_ok=True)
                with suppress(OSError):
                    for path in created:
                        path.rmdir()


def _open_lock_file(folder: Path) -> IO[str]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_tree(folder)
        return open(folder / LOCK_NAME, "a", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o644))
    except OSError as error:
        raise UserError(f"{folder} cannot be used as a run folder: {error.strerror or error}") from error
