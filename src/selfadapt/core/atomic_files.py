"""Files that are written whole or not at all."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from selfadapt.core import distributed
from selfadapt.core.errors import UserError


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[str]]:
    """A text file that appears under its name only once it is written to the end.

    Of several processes the first writes it.
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
    """Where to write a file that appears under its name only once it is whole. A link leads to its target."""
    if not path.name or path.is_dir():
        raise UserError(f"{path} is a folder; name a file")
    try:
        final = path.resolve()
    except (OSError, RuntimeError) as error:  # of links that lead to each other
        raise UserError(f"{path} cannot be written: {error}") from error
    if final.exists() and not final.is_file():
        raise UserError(f"{path} is no ordinary file; name another one")
    draft = final.with_name(f".draft-{final.name}")
    try:
        yield draft
        draft.replace(final)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
