"""Data in memory: pandas and polars frames, and Datasets of the package `datasets`.

Each package is recognised by the type that it defines, so none of them is imported unless the caller has it. The id of
a row is its index in pandas, else the column `id`, else its position.
"""

from collections.abc import Sequence
from typing import Any, Literal

from selfadapt.data.forms.form import Changes
from selfadapt.data.forms.plain_tables import relabelled

Package = Literal["pandas", "polars", "datasets"]
_TABLES: dict[Package, tuple[str, ...]] = {
    "pandas": ("DataFrame",), "polars": ("DataFrame",), "datasets": ("Dataset", "DatasetDict"),
}  # fmt: skip


def package_of(table: Any) -> Package | None:
    """Return the package of a table in memory, or None for anything else."""
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(table).__mro__}
    return next((package for package, names in _TABLES.items() for name in names if (package, name) in kinds), None)


def row_ids(table: Any) -> list[str]:
    """Return the id of each row."""
    if package_of(table) == "pandas":
        named = table["id"] if "id" in table.columns and _is_counted(table.index) else table.index
        return [str(value) for value in named]
    if "id" in _column_names(table):
        return [str(value) for value in table["id"]]
    return [str(position) for position in range(len(table))]


def label_spellings(table: Any, column: str) -> list[tuple[str, ...]]:
    """Return the label of each row as text; that of a ClassLabel column as its number and as its name."""
    if isinstance(table, dict):  # a DatasetDict
        from selfadapt.data.forms.saved_dataset import splits_of

        return [own for _, dataset in splits_of(table) for own in label_spellings(dataset, column)]
    _check_column(table, column)
    values = list(table[column])
    feature: Any = table.features[column] if package_of(table) == "datasets" else None
    if not hasattr(feature, "names"):
        return [(str(value),) for value in values]
    return [(str(value), feature.int2str(value)) for value in values]


def table_rows(table: Any) -> list[dict[str, Any]]:
    """Return one dictionary for each row."""
    names = _column_names(table)
    columns = [list(table[name]) for name in names]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def is_array_like(table: Any) -> bool:
    """Whether all columns of a frame hold numbers or truth values, and none is missing."""
    if package_of(table) == "pandas":
        numeric = all(getattr(dtype, "kind", "O") in "iufb" for dtype in table.dtypes)
        return numeric and not table.isna().to_numpy().any()
    if package_of(table) == "polars":
        numeric = all(dtype.is_numeric() or str(dtype) == "Boolean" for dtype in table.dtypes)
        return numeric and not any(table.null_count().row(0))
    return False


def corrected_copy(table: Any, column: str, changes: Changes) -> Any:
    """Return a copy of a table with other labels, in the type of its column.

    The index, the order and all other columns stay.

    Raises:
        ValueError: If the table is of another package or has no such column.
    """
    if package_of(table) == "datasets":
        from selfadapt.data.forms.saved_dataset import relabelled_dataset

        return relabelled_dataset(table, column, changes)
    _check_column(table, column)
    values = relabelled(list(table[column]), changes)
    kept = [position for position in range(len(values)) if changes.get(position, "") is not None]
    return (_in_pandas if package_of(table) == "pandas" else _in_polars)(table, column, values, kept)


def _in_pandas(frame: Any, column: str, values: Sequence[Any], kept: Sequence[int]) -> Any:
    import pandas

    corrected = frame.copy()
    corrected[column] = pandas.array(list(values), dtype=frame[column].dtype)
    return corrected.iloc[list(kept)]


def _in_polars(frame: Any, column: str, values: Sequence[Any], kept: Sequence[int]) -> Any:
    import polars

    return frame.with_columns(polars.Series(column, list(values), dtype=frame.schema[column]))[list(kept)]


def _check_column(table: Any, column: str) -> None:
    if package_of(table) is None:
        raise ValueError(f"{type(table).__name__} is not a DataFrame of pandas or polars, or a Dataset of datasets")
    if column not in _column_names(table):
        raise ValueError(f"the table has no column {column!r}; it has {', '.join(map(str, _column_names(table)))}")


def _column_names(table: Any) -> list[str]:
    return list(table.column_names if package_of(table) == "datasets" else table.columns)


def _is_counted(index: Any) -> bool:
    """Whether this is the index that pandas makes where the user gave none."""
    return type(index).__name__ == "RangeIndex"
