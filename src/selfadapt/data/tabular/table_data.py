"""Data sets from tables whose rows are encoded as vectors: a .csv or .parquet with a label column."""

from collections.abc import Callable, Sequence
from pathlib import Path

from selfadapt.core.errors import UserError
from selfadapt.data.dataset import Data, Samples
from selfadapt.data.labels.class_names import class_names, numbered
from selfadapt.data.tabular.row_encoder import Row, RowEncoder, Table
from selfadapt.data.tabular.table_file import SampleRow, TableColumns, read_sample_rows
from selfadapt.data.tabular.vectors import VectorInputs


def table_data(path: Path, fit: Callable[[Table], RowEncoder], columns: TableColumns) -> Data:
    """Open a table whose rows are encoded as vectors.

    Args:
        path: A .csv or .parquet file.
        fit: Creates the encoder from the training rows.
        columns: Names of the label and group columns.

    Raises:
        UserError: The table is invalid; see `read_sample_rows`.
    """
    rows = read_sample_rows(path, columns)
    by_split: dict[str, list[SampleRow]] = {}
    for row in rows:
        by_split.setdefault(row.split, []).append(row)
    if "train" not in by_split:
        raise UserError(f"{path} has no training rows; write train in the column split of some rows")
    hidden = {columns.label, columns.group, "id", "split"}

    def table(chosen: Sequence[SampleRow]) -> Table:
        values = [{name: value for name, value in row.values.items() if name not in hidden} for row in chosen]
        return Table(rows=values, location=lambda i: chosen[i].location)

    encoder = fit(table(by_split["train"]))
    classes = class_names(str(path), [row.label for row in by_split["train"]])

    def samples(chosen: Sequence[SampleRow]) -> Samples:
        labels = numbered([row.label for row in chosen], classes, lambda i: chosen[i].location)
        return Samples(
            inputs=VectorInputs(encoder.encode(table(chosen))),
            labels=labels,
            ids=[row.id for row in chosen],
            paths=[f"row {row.number}" for row in chosen],
            groups=None if columns.group is None else [str(row.group) for row in chosen],
        )

    splits = {name: samples(chosen) for name, chosen in by_split.items()}
    return Data.of(splits, name=path.stem, classes=classes, augment="none", reader=encoder)


def rows_by_id(path: Path, label_column: str, group_column: str | None = None) -> dict[str, Row]:
    """Return the raw rows of such a table by sample id, in their order."""
    columns = TableColumns(label=label_column, group=group_column)
    return {row.id: row.values for row in read_sample_rows(path, columns)}
