"""metrics.jsonl: a line for each finished epoch, with a checksum, so that a changed value is noticed.

    {"epoch": 1, "train_loss": 0.93, …, "seconds": 2.1, "crc32": 2212294583}

While a run is trained, the history in its checkpoints decides: lines that are missing or damaged are rebuilt from it,
but their seconds are lost. Lines of earlier versions have no checksum.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from selfadapt.core.atomic_files import atomic_write
from selfadapt.core.checksummed_json import from_line, to_line
from selfadapt.core.errors import UserError
from selfadapt.core.regular_files import read_regular
from selfadapt.core.typed_json import check
from selfadapt.run_folder import contents

Record = dict[str, Any]


def append_record(path: Path, record: Mapping[str, Any]) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(to_line(record))
        file.flush()
        os.fsync(file.fileno())


def write_records(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    with atomic_write(path) as file:
        file.writelines(map(to_line, records))


def read_records(path: Path) -> list[Record]:
    """Read all lines. What a crash left of a last line, without a line break, is ignored.

    Raises:
        UserError: If a line is damaged.
    """
    records: list[Record] = []
    try:
        for line in _whole_lines(path):
            records.append(_parsed(line, records[-1] if records else None))
    except ValueError as error:
        raise UserError(
            f"{path}, line {len(records) + 1} is damaged: {error}; restore it, or resume the run with --resume, which "
            "rebuilds this file from the checkpoint"
        ) from None
    return records


def rebuild_records(path: Path, history: Sequence[Mapping[str, Any]]) -> int:
    """Make the file hold the epochs of this history and no others.

    Returns:
        The number of epochs whose line was missing or differed.
    """
    found: dict[int, Record] = {}
    for line in _whole_lines(path):
        try:
            record = _parsed(line)
            found[record["epoch"]] = record
        except ValueError:
            continue
    kept = [found.get(metrics["epoch"], {}) for metrics in history]
    differ = [not _agrees(record, metrics) for record, metrics in zip(kept, history, strict=True)]
    records = [
        {**metrics, "seconds": None} if wrong else record
        for record, metrics, wrong in zip(kept, history, differ, strict=True)
    ]
    if not path.exists() or read_regular(path) != "".join(map(to_line, records)).encode():
        write_records(path, records)
    return sum(differ)


def measured_seconds(records: Iterable[Mapping[str, Any]]) -> list[float]:
    """The seconds of the epochs that were not rebuilt."""
    return [record["seconds"] for record in records if record["seconds"] is not None]


def _whole_lines(path: Path) -> list[bytes]:
    return read_regular(path).split(b"\n")[:-1] if path.exists() else []


def _parsed(line: bytes, before: Record | None = None) -> Record:
    """Parse a line and check it. Raises a ValueError that says what is wrong."""
    record = from_line(line, required=False)
    check(record, contents.Metrics)
    check(record, contents.Epoch)
    if before is not None and record["epoch"] != before["epoch"] + 1:
        raise ValueError(f"epoch {record['epoch']} follows epoch {before['epoch']}")
    return record


def _agrees(record: Record, metrics: Mapping[str, Any]) -> bool:
    """Whether a line holds these metrics. They are compared as text, in which NaN equals NaN."""
    return "seconds" in record and all(
        name in metrics and json.dumps(value) == json.dumps(metrics[name])
        for name, value in record.items()
        if name != "seconds"
    )
