"""Tables of samples: one reader for .csv and .parquet, and the columns that have a special meaning.

    path    image file, relative to the folder of the table; only in tables of images
    label   class; --label-column names another column
    id      unique name of the sample; by default the path, or a hash of the row
    split   train, val or test; train by default
    group   named by --group-column: samples that stay together in every split
    text    named by --text-column: the text to encode

Row 1 of a table is its header.
"""

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any

from selfadapt.core.errors import UserError
from selfadapt.core.regular_files import check_regular, open_regular
from selfadapt.data.labels.class_names import UNLABELLED, check_labels
from selfadapt.data.sample_ids import content_ids
from selfadapt.data.tabular.row_encoder import Row

SPLIT_NAMES = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}
TABLE_SUFFIXES = (".csv", ".parquet")


@dataclass(frozen=True, kw_only=True)
class TableColumns:
    """Names of the columns that users may choose."""

    label: str = "label"
    text: str | None = None
    group: str | None = None

    def check_unused(self, source: str) -> None:
        """Raise a UserError if a column is named although `source` is not a table."""
        for name, value in asdict(self).items():
            if value not in (None, "label"):
                raise UserError(
                    f"--{name}-column is for tables (.csv, .parquet), but {source} is not one; leave it out"
                )


@dataclass(frozen=True, kw_only=True)
class SampleRow:
    """A sample in a table."""

    location: str  # file, row and id, for error messages
    number: int
    id: str
    label: str
    split: str
    group: str | None
    values: Row  # all columns


def read_table(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a .csv or .parquet file."""
    return parquet_rows(path) if path.suffix == ".parquet" else csv_rows(path)


def read_sample_rows(
    path: Path, columns: TableColumns, *, images: bool = False, unlabelled: bool = False
) -> list[SampleRow]:
    """Read a table of samples.

    Args:
        path: A .csv or .parquet file.
        columns: Names of the label and group columns.
        images: Whether the table lists image files in the column `path`.
        unlabelled: Accept a table without labels; then only its training rows are returned.

    Raises:
        UserError: A column, label, id, path or group is missing, an id occurs twice, or a split is unknown.
    """
    rows = read_table(path)
    if not rows:
        raise UserError(f"{path} has no rows; add one for each sample")
    unlabelled = unlabelled and all(row.get(columns.label) in (None, "") for row in rows)
    wanted = ("path" if images else None, None if unlabelled else columns.label, columns.group)
    required = [name for name in wanted if name is not None]
    if missing := [name for name in required if name not in rows[0]]:
        raise UserError(
            f"{path} has no column {' and '.join(map(repr, missing))}; it has {', '.join(map(str, rows[0]))}. "
            "Name others with --label-column and --group-column"
        )
    splits = [_split(path, number, row) for number, row in enumerate(rows, start=2)]
    if not images and "id" not in rows[0]:
        ids = _hashed_ids(rows, splits, {columns.label, columns.group, "split"})
        locations = [f"{path}, row {number}" for number in range(2, len(rows) + 2)]
    else:
        ids = [str(row.get("id") or row["path"] if images else row["id"]) for row in rows]
        locations = [f"{path}, row {n} ({sample_id})" for n, sample_id in enumerate(ids, start=2)]
    if not unlabelled:
        check_labels([row[columns.label] for row in rows], columns.label, locations.__getitem__)
    _check_filled(path, rows, required if images or "id" not in rows[0] else [*required, "id"])
    _check_unique(path, ids)
    return [
        SampleRow(
            location=location,
            number=number,
            id=sample_id,
            label=UNLABELLED if unlabelled else str(row[columns.label]),
            split=split,
            group=None if columns.group is None else str(row[columns.group]),
            values=row,
        )
        for number, (row, sample_id, split, location) in enumerate(
            zip(rows, ids, splits, locations, strict=True), start=2
        )
        if split == "train" or not unlabelled
    ]


def _split(path: Path, number: int, row: Row) -> str:
    name = str(row.get("split") or "train").lower()
    if name not in SPLIT_NAMES:
        raise UserError(f"{path}, row {number}: split is {name!r}; write train, val or test")
    return SPLIT_NAMES[name]


def _hashed_ids(rows: Sequence[Row], splits: Sequence[str], ignored: set[str | None]) -> list[str]:
    """Ids that depend on the split and on the values, but neither on the label nor on the order of the rows."""
    contents = [repr(sorted((k, str(v)) for k, v in row.items() if k not in ignored)).encode() for row in rows]
    return [f"{split}{suffix}" for split, suffix in zip(splits, content_ids("", contents), strict=True)]


def _check_filled(path: Path, rows: Sequence[Row], names: Sequence[str]) -> None:
    for number, row in enumerate(rows, start=2):
        for name in names:
            if row[name] is None or not str(row[name]).strip():
                raise UserError(f"{path}, row {number}: {name} is empty; fill it in or remove the row")


def _check_unique(path: Path, ids: Sequence[str]) -> None:
    first: dict[str, int] = {}
    for number, sample_id in enumerate(ids, start=2):
        if first.setdefault(sample_id, number) != number:
            raise UserError(
                f"{path}: the id {sample_id!r} is used in rows {first[sample_id]} and {number}; make ids unique"
            )


def csv_rows(path: Path, *, exact: bool = False) -> list[dict[str, Any]]:
    """Read a .csv file as one dictionary for each row. Spaces before a value are ignored unless `exact`."""
    with _open_csv(path) as file:
        reader = csv.DictReader(file, skipinitialspace=not exact)
        rows, names = list(reader), list(reader.fieldnames or ())
    if not names:
        raise UserError(f"{path} is empty; its first line must name the columns")
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise UserError(f"{path} has {count} columns named {name!r}; rename all but one")
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            more = "more" if None in row else "fewer"
            raise UserError(
                f"{path}, row {number} has {more} values than the {len(names)} columns of the header; correct the row"
            )
    return rows


def parquet_rows(path: Path) -> list[dict[str, Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise UserError("reading .parquet needs pyarrow: pip install 'selfadapt[parquet]'") from error
    check_regular(path)
    try:
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
        return rows
    except (OSError, ArrowException) as error:
        raise UserError(f"{path} cannot be read as a .parquet file: {error}") from error


def column_names(path: Path) -> list[str]:
    """Return the column names of a .csv or .parquet file; of a .csv, only the header is read."""
    if path.suffix == ".parquet":
        rows = parquet_rows(path)
        return list(rows[0]) if rows else []
    with _open_csv(path) as file:
        return next(csv.reader(file, skipinitialspace=True), [])


@contextmanager
def _open_csv(path: Path) -> Iterator[IO[str]]:
    try:
        with TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file:
            yield file
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as a .csv file: {error}") from error
