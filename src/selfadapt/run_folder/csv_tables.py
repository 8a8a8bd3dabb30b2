"""CSV files with a header line."""

import csv
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path

from selfadapt.core.atomic_files import atomic_write
from selfadapt.core.errors import UserError
from selfadapt.core.regular_files import read_regular


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write the column names and the rows."""
    with atomic_write(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        quoting_writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        writer.writerow(columns)
        for row in rows:
            # Before Python 3.13 a lone carriage return is not quoted, and is read as the end of the row.
            (quoting_writer if any("\r" in value for value in row) else writer).writerow(row)


def read_table(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Read the rows of a table that must have these columns."""
    try:
        return parse_table(path, read_regular(path), columns)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; was the run stopped before it was written?") from None


def parse_table(path: Path, content: bytes, columns: Sequence[str]) -> list[dict[str, str]]:
    """Parse the content of a table that must have these columns."""
    try:
        text = content.decode("utf-8-sig")  # spreadsheets may write a byte order mark
        reader = csv.DictReader(StringIO(text, newline=""))
        missing = [column for column in columns if column not in (reader.fieldnames or ())]
        if missing:
            raise UserError(f"{path} lacks the column {missing[0]}; keep its columns and the commas between them")
        rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as a .csv file in UTF-8: {error}") from None
    for number, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise UserError(f"{path}, line {number} has too {'many' if None in row else 'few'} values")
    return rows
