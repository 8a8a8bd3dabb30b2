"""checksums.json: the SHA-256 of each file of a run that only the program writes.

It protects against accidents, such as a flipped bit or a file that was cut, deleted or edited, not against malice.
Files that people edit (labels.csv, decisions.csv), the journal of decisions, the metrics and the checkpoints, which
have their own checks, are not listed.

A file is written in three steps, so that a crash between any two of them leaves a state that is accepted:

    1. the new checksum is added to that of the present file, or to null if there is none
    2. the file is replaced
    3. the checksums before the new one are removed

A file in a sub-folder other than figures is a cache: it may be deleted, and is made again. A folder of an earlier
version has no checksums; it is opened with one warning.
"""

import fcntl
import hashlib
import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selfadapt.core.atomic_files import atomic_path, atomic_write
from selfadapt.core.errors import UserError
from selfadapt.core.regular_files import read_regular, sha256_of
from selfadapt.core.typed_json import check, parse

NAME = "checksums.json"
_Sums = dict[str, list[str | None]]  # of each file, by its path in the folder; null: it may be absent
_WARNED: set[Path] = set()


@contextmanager
def recorded(folder: Path, path: Path) -> Iterator[Path]:
    """Yield an empty temporary file that replaces `path`, and records its checksum, when the block ends."""
    name = path.relative_to(folder).as_posix()
    with atomic_path(path) as draft:
        yield draft
        new = _sha256(draft)
        with _locked(folder):
            sums = _read(folder)
            accepted = [own for own in sums.get(name, [_sha256(path)]) if own != new]
            _write(folder, {**sums, name: [*accepted, new]})
    with _locked(folder):
        sums = _read(folder)
        accepted = sums.get(name, [])
        _write(folder, {**sums, name: accepted[accepted.index(new) :] if new in accepted else [new]})


def remove(folder: Path, path: Path) -> None:
    """Remove a file and its checksum."""
    if not path.exists():
        return
    with _locked(folder):
        _write(folder, {name: own for name, own in _read(folder).items() if folder / name != path})
    path.unlink(missing_ok=True)


def read_recorded(folder: Path, path: Path) -> bytes | None:
    """Read a file and compare it with its checksum. Returns None if it does not exist.

    Raises:
        UserError: If it was changed or is missing.
    """
    content = _content(path)
    if not _matches(folder, path, None if content is None else hashlib.sha256(content).hexdigest()):
        with _locked(folder):  # another process may have been replacing it
            content = _content(path)
            _require(folder, path, None if content is None else hashlib.sha256(content).hexdigest())
    return content


def check_recorded(folder: Path, path: Path) -> None:
    """Compare a large file with its checksum, without keeping its content; see `read_recorded`."""
    if not _matches(folder, path, _sha256(path)):
        with _locked(folder):
            _require(folder, path, _sha256(path))


def _require(folder: Path, path: Path, digest: str | None) -> None:
    if not _matches(folder, path, digest):
        what = "is missing" if digest is None else "was changed after it was written"
        raise UserError(
            f"{path} {what}: it does not match {NAME}; restore it, or delete it together with its entry there and run "
            "the command that wrote it again"
        )


def warn_if_missing(folder: Path, path: Path) -> None:
    """Warn once in a process if a file that exists has no checksum."""
    if path.relative_to(folder).as_posix() not in _read(folder) and folder not in _WARNED:
        _WARNED.add(folder)
        warnings.warn(
            f"{folder} has no checksums, as an earlier version made it; accidental changes to its files go unnoticed",
            stacklevel=3,
        )


def _matches(folder: Path, path: Path, digest: str | None) -> bool:
    name = path.relative_to(folder).as_posix()
    accepted = _read(folder).get(name)
    is_deleted_cache = digest is None and "/" in name and not name.startswith("figures/")
    return accepted is None or digest in accepted or is_deleted_cache


def _read(folder: Path) -> _Sums:
    content = _content(folder / NAME)
    try:
        sums: _Sums = {} if content is None else parse(content)
        check(sums, _Sums)
    except ValueError as error:
        raise UserError(
            f"{folder / NAME} is damaged: {error}; restore it, or delete it to use the run without checksums"
        ) from error
    return sums


def _write(folder: Path, sums: _Sums) -> None:
    with atomic_write(folder / NAME) as file:
        json.dump(sums, file, indent=2, sort_keys=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _content(path: Path) -> bytes | None:
    try:
        return read_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _sha256(path: Path) -> str | None:
    try:
        return sha256_of(path)
    except FileNotFoundError:
        return None
