"""Tables whose rows a reader makes vectors of: a .csv or .parquet with a label column."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from selfadapt.core.errors import UserError
from selfadapt.data.dataset import Data, Samples
from selfadapt.data.labels.class_names import check_labels, class_names, numbered
from selfadapt.data.sources.arrays import content_ids
from selfadapt.data.sources.image_folder import PARTS
from selfadapt.data.tabular.row_encoder import Row, RowEncoder, Table
from selfadapt.data.tabular.table_file import csv_rows, parquet_rows
from selfadapt.data.tabular.vectors import vector_samples


def table_data(
    path: Path,
    fit: Callable[[Table], RowEncoder],
    *,
    label_column: str = "label",
    group_column: str | None = None,
) -> Data:
    """A .csv or .parquet whose rows a reader makes vectors of; the reader is fitted on the training rows alone.

    The columns `id` and `split` (train, val or test), where there are any, mean what they mean for tables of images.
    Without `id`, an id is a hash of the row.
    """
    special = [label_column, *([group_column] if group_column else [])]
    by_id = rows_by_id(path, special)
    ids, rows = list(by_id), list(by_id.values())
    check_labels([row[label_column] for row in rows], label_column, lambda i: f"{path}, row {i + 2}")
    parts = _parts(path, rows)
    hidden = {*special, "id", "split"}

    def table(part: str) -> Table:
        chosen = parts[part]
        plain = [{name: value for name, value in rows[i].items() if name not in hidden} for i in chosen]
        return Table(rows=plain, place=lambda i: f"{path}, row {chosen[i] + 2}")  # row 1 is the head

    reader = fit(table("train"))
    classes = class_names(str(path), [_word(path, rows, i, label_column) for i in parts["train"]])

    def samples(part: str) -> Samples | None:
        if part not in parts:
            return None
        chosen = parts[part]
        labels = numbered(
            [_word(path, rows, i, label_column) for i in chosen], classes, lambda i: f"{path}, row {chosen[i] + 2}"
        )
        values = reader.read_all(table(part)).numpy()
        own = vector_samples(values, labels, [ids[i] for i in chosen], [f"row {i + 2}" for i in chosen])
        groups = None if group_column is None else [_word(path, rows, i, group_column) for i in chosen]
        return replace(own, groups=groups)

    train = samples("train")
    assert train is not None
    return Data(
        name=path.stem,
        classes=classes,
        train=train,
        validation=samples("validation"),
        test=samples("test"),
        augment="none",
        reader=reader,
    )


def rows_by_id(path: Path, special: Sequence[str]) -> dict[str, Row]:
    """The rows of such a table as they stand in it, by their ids, in their order.

    `special` are the columns of the labels and, if there are any, of the groups.
    """
    rows = parquet_rows(path) if path.suffix == ".parquet" else csv_rows(path)
    _check_columns(path, rows, special)
    ids = _ids(path, rows, _parts(path, rows), {*special, "id", "split"})
    return dict(zip(ids, rows, strict=True))


def _check_columns(path: Path, rows: Sequence[Row], wanted: Sequence[str]) -> None:
    if not rows:
        raise UserError(f"{path} has no rows")
    for name in wanted:
        if name not in rows[0]:
            options = "--label-column" if name == wanted[0] else "--group-column"
            raise UserError(
                f"{path} has no column {name!r}; it has {', '.join(map(str, rows[0]))}. Name one with {options}"
            )


def _parts(path: Path, rows: Sequence[Row]) -> dict[str, list[int]]:
    """The positions of the rows of each part."""
    parts: dict[str, list[int]] = {}
    for position, row in enumerate(rows):
        word = str(row.get("split") or "train").lower()
        if word not in PARTS:
            raise UserError(f"{path}, row {position + 2}: split is {word!r}; write train, val or test")
        parts.setdefault(PARTS[word], []).append(position)
    if "train" not in parts:
        raise UserError(f"{path}: no row is for training; the column split says so for none")
    return parts


def _ids(path: Path, rows: Sequence[Row], parts: Mapping[str, Sequence[int]], hidden: set[str]) -> list[str]:
    if "id" not in rows[0]:
        part_of = {position: part for part, chosen in parts.items() for position in chosen}
        plain = [repr(sorted((k, str(v)) for k, v in row.items() if k not in hidden)).encode() for row in rows]
        return [f"{part_of[i]}/{found.removeprefix('/')}" for i, found in enumerate(content_ids("", plain))]
    seen: dict[str, int] = {}
    for position in range(len(rows)):
        found = _word(path, rows, position, "id")
        if found in seen:
            raise UserError(
                f"{path}: the id {found!r} stands in rows {seen[found] + 2} and {position + 2}; ids must differ"
            )
        seen[found] = position
    return list(seen)


def _word(path: Path, rows: Sequence[Row], position: int, column: str) -> str:
    """What a row says in this column, which may not be empty."""
    value: Any = rows[position].get(column)
    if value is None or not str(value).strip():
        raise UserError(f"{path}, row {position + 2}: {column} is empty")
    return str(value)
