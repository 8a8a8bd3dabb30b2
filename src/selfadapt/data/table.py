"""Reading the rows of a table, from .csv or .parquet."""

import csv
from pathlib import Path
from typing import Any

from selfadapt.errors import UserError


def csv_rows(path: Path, *, exact: bool = False) -> list[dict[str, Any]]:
    """The rows by column. Blanks before a value are a matter of style, unless `exact`."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            return list(csv.DictReader(file, skipinitialspace=not exact))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as a .csv file: {error}") from error


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
