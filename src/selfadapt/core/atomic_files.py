"""Atomic writes: a file or folder appears under its name only when it is complete."""

import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from selfadapt.core import distributed
from selfadapt.core.errors import UserError


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[str]]:
    """Open a UTF-8 text file that replaces `path` when the block ends without an error.

    Only the process of rank 0 writes it; the others write to a buffer that is discarded.
    """
    if distributed.rank():
        yield io.StringIO()
        return
    with atomic_path(path) as draft, open(draft, "w", encoding="utf-8", newline="") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block ends without an error. Symbolic links are followed."""
    if not path.name or path.is_dir():
        raise UserError(f"{path} is a folder; give the name of a file")
    try:
        final = path.resolve()
    except (OSError, RuntimeError) as error:  # a loop of symbolic links
        raise UserError(f"{path} cannot be written: {error}") from error
    if final.exists() and not final.is_file():
        raise UserError(f"{path} is not a regular file; give another name")
    draft = final.with_name(f".draft-{final.name}")
    try:
        yield draft
        draft.replace(final)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


@contextmanager
def atomic_folder(final: Path) -> Iterator[Path]:
    """Yield an empty temporary folder that replaces `final` when the block ends without an error."""
    draft = final.with_name(f".draft-{final.name}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        yield draft
        shutil.rmtree(final, ignore_errors=True)
        draft.rename(final)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def fsync_path(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
