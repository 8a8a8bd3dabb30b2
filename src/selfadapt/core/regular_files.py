"""Regular files only: a FIFO, a device or a socket would block or never end, and a link may lead anywhere."""

import hashlib
import os
import shutil
import stat
from contextlib import suppress
from io import BufferedReader
from pathlib import Path

from selfadapt.core.errors import UserError

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


MOST_TEXT = 2**30  # bytes of a file that is read as a whole


def open_regular(path: Path, *, most: int | None = None) -> BufferedReader:
    """Open a regular file of at most `most` bytes for reading, without ever waiting; links are followed.

    Raises:
        UserError: If it is anything else, or larger.
        OSError: If it cannot be opened, such as FileNotFoundError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _not_regular(path, found.st_mode)
        if most is not None and found.st_size > most:
            raise UserError(f"{path} has {found.st_size:,} bytes, more than the {most:,} that it may have; replace it")
        return open(path, "rb", opener=lambda *_: descriptor)  # so that the file knows its name
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path, *, most: int = MOST_TEXT) -> bytes:
    """Read a regular file of at most `most` bytes; see `open_regular`."""
    with open_regular(path, most=most) as file:
        return file.read(most)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a regular file, in hexadecimal digits; see `open_regular`."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_regular(path: Path) -> None:
    """Check that a path leads to a regular file; links are followed.

    Raises:
        UserError: If it leads to anything else. A missing file is left to whatever opens it.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if not stat.S_ISREG(mode):
        raise _not_regular(path, mode)


def copy_regular(source: str, target: str) -> str:
    """Copy a regular file, for `shutil.copytree`, which would copy a device without end."""
    check_regular(Path(source))
    return str(shutil.copy2(source, target))


def check_tree(folder: Path) -> None:
    """Check that a folder holds nothing but regular files and folders, at any depth.

    What a program writes into its own folder is never a link. A folder from a stranger may hold one that leads to
    another place, so that writing a file overwrites something else.

    Raises:
        UserError: At the first entry that is something else.
    """
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            with suppress(FileNotFoundError):  # another process may remove its temporary files meanwhile
                mode = entry.stat(follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    check_tree(Path(entry.path))
                elif not stat.S_ISREG(mode):
                    raise UserError(
                        f"{entry.path} is {_kind(mode)}; a run folder holds regular files and folders only: remove it, "
                        "or put the file itself in its place"
                    )


def _not_regular(path: Path, mode: int) -> UserError:
    return UserError(f"{path} is {_kind(mode)}, not a regular file; remove it or name another file")


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "not an ordinary file")
