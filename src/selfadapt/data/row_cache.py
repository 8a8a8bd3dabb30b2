"""A cache of features, keyed by the content that they were computed from.

    $SELFADAPT_HOME/features/KEY/about.json   what the rows depend on: network, weights, preprocessing
    $SELFADAPT_HOME/features/KEY/*.rows       a header line, then records: 16 bytes of content hash, a row of float32,
                                              4 bytes of checksum

KEY is a hash of about.json. Each process appends to a separate file, record by record, so that an interruption loses
at most the record being written. Damaged rows and files of another key are detected and ignored. All files together
stay below `MOST_BYTES`: the least recently used are removed first, but none that the running process uses.

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


def content_digest(*contents: bytes | memoryview) -> bytes:
    """Return the content hash under which a row is stored."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for content in contents:
        digest.update(content)
    return digest.digest()


def rows_folder() -> Path:
    return cache_dir() / "features"


class RowCache:
    """Rows that depend only on `about` and on the content under whose hash they are stored."""

    def __init__(self, about: Mapping[str, Any], width: int) -> None:
        text = json.dumps({**about, "width": width}, sort_keys=True)
        self._key = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        self._header = f"selfadapt rows 1 {self._key} {width}\n".encode()
        self._record = np.dtype([("digest", f"V{_DIGEST_BYTES}"), ("row", "<f4", (width,)), ("check", "<u4")])
        self._about = text
        self.folder = rows_folder() / self._key
        self._file = self.folder / f"{time.time_ns()}-{uuid.uuid4().hex[:8]}.rows"
        self._used: set[Path] = set()
        self.refused = False  # rows could not be written

    def find(self, digests: Sequence[bytes]) -> dict[bytes, Rows]:
        """Return the cached rows among these, by content hash."""
        wanted, found = set(digests), dict[bytes, Rows]()
        damaged = 0
        for path, records in self._files():
            hits = [i for i, digest in enumerate(records["digest"].tolist()) if digest in wanted]
            for record in records[hits]:  # copies the records from the memory-mapped file
                digest = record["digest"].tobytes()
                if zlib.crc32(record.tobytes()[:-4]) == record["check"]:
                    found[digest] = record["row"]
                else:
                    damaged += 1
            if hits:
                self._used.add(path)
                path.touch()
        if damaged and len(found) < len(wanted):
            warnings.warn(f"{damaged} rows in {self.folder} are damaged and are computed again", stacklevel=2)
        return found

    def add(self, digests: Sequence[bytes], rows_NF: Rows) -> None:
        """Store rows. A failure to write only causes a warning."""
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
                warnings.warn(
                    f"features cannot be cached in {self.folder}: {error.strerror or error}; free some space",
                    stacklevel=2,
                )

    def trim(self) -> None:
        """Remove the least recently used files until all fit, except those that this process used."""
        files = sorted((path.stat().st_mtime_ns, path.stat().st_size, path) for path in rows_folder().glob("*/*.rows"))
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total <= MOST_BYTES:
                break
            if path not in self._used:
                path.unlink(missing_ok=True)
                total -= size

    def _write(self, content: bytes) -> None:
        if self._file not in self._used:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "about.json").write_text(self._about)
            self._file.write_bytes(self._header)
            self._used.add(self._file)
        with open(self._file, "ab") as file:
            file.write(content)

    def _files(self) -> Iterator[tuple[Path, _Records]]:
        """Yield the files of this key with their complete records; remove files with another header."""
        for path in sorted(self.folder.glob("*.rows")):
            with open(path, "rb") as file:
                header = file.read(len(self._header))
            if len(header) < len(self._header) and self._header.startswith(header):
                continue  # its process has just started, or was stopped at once
            if header != self._header:
                warnings.warn(f"{path} contains rows of another key; they are computed again", stacklevel=3)
                path.unlink(missing_ok=True)
                continue
            count = (path.stat().st_size - len(self._header)) // self._record.itemsize
            if count:
                yield path, np.memmap(path, self._record, "r", offset=len(self._header), shape=(count,))
