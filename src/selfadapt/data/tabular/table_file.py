"""Reading the rows of a table, from .csv or .parquet."""

import csv
from collections import Counter
from pathlib import Path
from typing import Any

from selfadapt.core.errors import UserError


def csv_rows(path: Path, *, exact: bool = False) -> list[dict[str, Any]]:
    """The rows by column. Blanks before a value are a matter of style, unless `exact`."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, skipinitialspace=not exact)
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as a .csv file: {error}") from error
    names = list(reader.fieldnames or ())
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise UserError(f"{path} has {count} columns of the name {name!r}; rename all but one")
    for number, row in enumerate(rows, start=2):  # row 1 is the head
        if None in row or None in row.values():
            more = "more" if None in row else "fewer"
            raise UserError(f"{path}, row {number} has {more} values than the {len(names)} columns of the head")
    return rows


def parquet_rows(path: Path) -> list[dict[str, Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise UserError("reading .parquet needs pyarrow: pip install 'selfadapt[parquet]'") from error
    try:
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
        return rows
    except (OSError, ArrowException) as error:
        raise UserError(f"{path} cannot be read as a .parquet file: {error}") from error


def column_names(path: Path) -> list[str]:
    """The columns of a .csv or .parquet, without reading its rows."""
    if path.suffix != ".parquet":
        try:
            with open(path, encoding="utf-8-sig", newline="") as file:
                return next(csv.reader(file, skipinitialspace=True), [])
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"{path} cannot be read as a .csv file: {error}") from error
    rows = parquet_rows(path)
    return list(rows[0]) if rows else []
