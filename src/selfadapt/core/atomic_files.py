"""Atomic writes: a file or folder appears under its name only when it is complete."""

import glob
import io
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from selfadapt.core.errors import UserError

_STALE_SECONDS = 3600.0  # after which a temporary file belongs to a process that was killed


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[str]]:
    """Open a UTF-8 text file that replaces `path` when the block ends without an error.

    Only the process of rank 0 writes it; the others write to a buffer that is discarded.
    """
    if not _is_first_process():
        yield io.StringIO()
        return
    with atomic_path(path) as draft, open(draft, "w", encoding="utf-8", newline="") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _is_first_process() -> bool:
    if "torch" not in sys.modules:  # nothing has joined a group, and torch takes seconds to import
        return True
    from selfadapt.core import distributed

    return distributed.rank() == 0


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield an empty temporary file that replaces `path` when the block ends without an error.

    Missing folders above it are created. The temporary file has a random name and is created exclusively, so that no
    file or link that somebody prepared is written to. If `path` is a symbolic link to a file, the file is replaced.

    Raises:
        UserError: If `path` is not a file or cannot be written.
    """
    try:
        if not path.name or path.is_dir():
            raise UserError(f"{path} is a folder; give the name of a file")
        final = path.resolve()
        if final.exists() and not final.is_file():
            raise UserError(f"{path} is not a regular file; give another name")
        if not final.parent.exists():
            final.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale_drafts(final)
        draft = final.with_name(f".draft-{secrets.token_hex(8)}-{final.name}")
        folder = os.open(final.parent, os.O_RDONLY | os.O_DIRECTORY)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of symbolic links
        raise UserError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from error
    try:
        os.close(os.open(draft.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666, dir_fd=folder))
        yield draft
        os.replace(draft.name, final.name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            os.unlink(draft.name, dir_fd=folder)
        os.close(folder)


def _remove_stale_drafts(final: Path) -> None:
    """Remove temporary files that a killed process left."""
    for draft in final.parent.glob(f".draft-*-{glob.escape(final.name)}"):
        with suppress(OSError):
            if time.time() - draft.lstat().st_mtime > _STALE_SECONDS:
                draft.unlink()


@contextmanager
def atomic_folder(final: Path, *, flush: bool = False) -> Iterator[Path]:
    """Yield an empty temporary folder that replaces `final` when the block ends without an error.

    With `flush`, its files are on disk before it appears.
    """
    draft = final.with_name(f".draft-{final.name}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        yield draft
        if flush:
            for path in (*draft.iterdir(), draft):
                fsync_path(path)
        shutil.rmtree(final, ignore_errors=True)
        draft.rename(final)
        if flush:
            fsync_path(final.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def fsync_path(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
