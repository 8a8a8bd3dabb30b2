"""Tables in .csv and .parquet files. Row 1 of a .csv is its header."""

import csv
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any

from selfadapt.core.atomic_files import atomic_path, atomic_write
from selfadapt.core.errors import UserError
from selfadapt.core.regular_files import check_regular, open_regular
from selfadapt.data.forms.form import Changes, Form

_PARQUET = "reading .parquet needs pyarrow: pip install 'selfadapt[parquet]'"


class CsvFile(Form):
    """A .csv file."""

    suffix = ".csv"

    def column_names(self, path: Path) -> list[str]:
        with _open_csv(path) as file:
            return next(csv.reader(file, skipinitialspace=True), [])

    def rows(self, path: Path) -> list[dict[str, Any]]:
        return csv_rows(path)

    def write(self, path: Path, out: Path, column: str, changes: Changes) -> None:
        """Write the table with the line ends of the original. Paths stay valid from the new place."""
        with _open_csv(path) as file:
            line_end = "\r\n" if file.readline().endswith("\r\n") else "\n"
            file.seek(0)
            header, *rows = csv.reader(file)
        names = [name.strip() for name in header]
        kept = []
        for position, row in enumerate(row for row in rows if row):
            label = changes.get(position, row[names.index(column)])
            if label is not None:
                row[names.index(column)] = label
                kept.append(row)
        if "path" in names:
            moved = _moved([row[names.index("path")] for row in kept], path, out)
            for row, own in zip(kept, moved, strict=True):
                row[names.index("path")] = own
        with atomic_write(out) as file:
            writer = csv.writer(file, lineterminator=line_end)
            writer.writerow(header)
            writer.writerows(kept)


class ParquetFile(Form):
    """A .parquet file."""

    suffix = ".parquet"

    def column_names(self, path: Path) -> list[str]:
        return list(_parquet_table(path).column_names)

    def rows(self, path: Path) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = _parquet_table(path).to_pylist()
        return rows

    def write(self, path: Path, out: Path, column: str, changes: Changes) -> None:
        """Write the table with the same schema. Paths stay valid from the new place."""
        import pyarrow
        from pyarrow import parquet

        table = _parquet_table(path)
        kept = [position for position in range(len(table)) if changes.get(position, "") is not None]
        given = table.column(column).to_pylist()
        labels = relabelled(given, changes)
        table = table.take(pyarrow.array(kept, pyarrow.int64()))
        new = {column: [labels[position] for position in kept]}
        if "path" in table.column_names:
            new["path"] = _moved(table.column("path").to_pylist(), path, out)
        for name, values in new.items():
            field = table.schema.field(name)
            index = table.schema.get_field_index(name)
            plain = field.type.value_type if pyarrow.types.is_dictionary(field.type) else field.type
            table = table.set_column(index, field, pyarrow.array(values, plain).cast(field.type))
        with atomic_path(out) as draft:
            parquet.write_table(table, draft)


def relabelled(given: Sequence[Any], changes: Changes) -> list[Any]:
    """Return the labels after the changes, each in the type in which the column has it."""
    typed = {str(value): value for value in given}
    return [
        typed.get(new, new) if (new := changes.get(position)) is not None else value
        for position, value in enumerate(given)
    ]


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


def _moved(paths: Sequence[str], path: Path, out: Path) -> list[str]:
    """Paths relative to the folder of `path`, made relative to the folder of `out`."""
    old, new = path.parent.resolve(), out.parent.resolve()
    return [own if old == new or os.path.isabs(own) else os.path.relpath(old / own, new) for own in paths]


@contextmanager
def _open_csv(path: Path) -> Iterator[IO[str]]:
    try:
        with TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file:
            yield file
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as a .csv file: {error}") from error


def _parquet_table(path: Path) -> Any:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise UserError(_PARQUET) from error
    check_regular(path)
    try:
        return parquet.read_table(path)
    except (OSError, ArrowException) as error:
        raise UserError(f"{path} cannot be read as a .parquet file: {error}") from error
