"""Rows of numbers that took long to compute, kept by the content of what they were computed from.

    $SELFADAPT_HOME/features/KEY/about.json   what the rows depend on: network, weights, preprocessing
    $SELFADAPT_HOME/features/KEY/*.rows       a line of head, then records: 16 bytes of content hash, a row of float32,
                                              4 bytes of checksum

KEY is a hash of about.json. Each process adds to a file of its own, record by record, so what was computed before a
stop is there afterwards: a last record that was cut short does not count. A row that was changed since, or a file of
another key, is noticed and not used. All files together stay below `MOST_BYTES`; those used longest ago go first, but
none that the running process needs.

Shapes: N rows of F values.
"""

import hashlib
import json
import time
import uuid
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from selfadapt.core.cache_dir import cache_dir

MOST_BYTES = 10 << 30
_DIGEST_BYTES = 16

Rows = np.ndarray[tuple[int, int], np.dtype[np.float32]]
_Records = np.ndarray[tuple[int], np.dtype[np.void]]


def content_digest(*pieces: bytes | memoryview) -> bytes:
    """The hash by which a row is found again."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


def rows_folder() -> Path:
    return cache_dir() / "features"


class RowCache:
    """The rows that depend on `about` and on nothing else but the content they are filed under."""

    def __init__(self, about: Mapping[str, Any], width: int, *, most_bytes: int | None = None) -> None:
        text = json.dumps({**about, "width": width}, sort_keys=True)
        self._key = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        self._head = f"selfadapt rows 1 {self._key} {width}\n".encode()
        self._record = np.dtype([("digest", f"V{_DIGEST_BYTES}"), ("row", "<f4", (width,)), ("check", "<u4")])
        self._about, self._width = text, width
        self._most_bytes = MOST_BYTES if most_bytes is None else most_bytes
        self.folder = rows_folder() / self._key
        self._own = self.folder / f"{time.time_ns()}-{uuid.uuid4().hex[:8]}.rows"
        self._used: set[Path] = set()
        self.refused = False  # whether rows could not be written

    def find(self, digests: Sequence[bytes]) -> dict[bytes, Rows]:
        """The rows that are there, by their content hash."""
        wanted, found = set(digests), dict[bytes, Rows]()
        damaged = 0
        for path, records in self._files():
            hits = [i for i, digest in enumerate(records["digest"].tolist()) if digest in wanted]
            for record in records[hits]:  # copies these records out of the mapped file
                digest = record["digest"].tobytes()
                if zlib.crc32(record.tobytes()[:-4]) == record["check"]:
                    found[digest] = record["row"]
                else:
                    damaged += 1
            if hits:
                self._used.add(path)
                path.touch()
        if damaged and len(found) < len(wanted):
            warnings.warn(f"{damaged} rows in {self.folder} were damaged and are computed anew", stacklevel=2)
        return found

    def add(self, digests: Sequence[bytes], rows_NF: Rows) -> None:
        """Keep these rows. Where that is not possible, work goes on without."""
        records = np.zeros(len(digests), self._record)
        records["row"] = rows_NF
        for position, digest in enumerate(digests):
            records["digest"][position] = np.void(digest)
            records["check"][position] = zlib.crc32(records[position].tobytes()[:-4])
        try:
            self._write(records.tobytes())
        except OSError as error:
            if not self.refused:
                self.refused = True
                warnings.warn(f"rows cannot be kept in {self.folder}: {error.strerror or error}", stacklevel=2)

    def trim(self) -> None:
        """Remove what was used longest ago until all rows of the machine fit; what was used here stays."""
        files = sorted((path.stat().st_mtime_ns, path.stat().st_size, path) for path in rows_folder().glob("*/*.rows"))
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total <= self._most_bytes:
                break
            if path not in self._used:
                path.unlink(missing_ok=True)
                total -= size

    def _write(self, content: bytes) -> None:
        if self._own not in self._used:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "about.json").write_text(self._about)
            self._own.write_bytes(self._head)
            self._used.add(self._own)
        with open(self._own, "ab") as file:
            file.write(content)

    def _files(self) -> Iterator[tuple[Path, _Records]]:
        """The files of this key with their whole records; one that is something else is removed."""
        for path in sorted(self.folder.glob("*.rows")):
            with open(path, "rb") as file:
                head = file.read(len(self._head))
            if len(head) < len(self._head) and self._head.startswith(head):
                continue  # its process has just begun, or ended at once
            if head != self._head:
                warnings.warn(f"{path} holds other rows than its name says; they are computed anew", stacklevel=3)
                path.unlink(missing_ok=True)
                continue
            count = (path.stat().st_size - len(self._head)) // self._record.itemsize
            if count:
                yield path, np.memmap(path, self._record, "r", offset=len(self._head), shape=(count,))
