"""The encoder of tables of numbers and categories.

- A number becomes (x - mean) / standard deviation. A missing number becomes 0, the mean; if any training row misses
  the number, an indicator that is 1 for missing is added.
- A category is one-hot encoded over the categories of the training rows. Missing is a category if it occurs in the
  training rows. An unknown category becomes zeros.
- Columns without information are dropped: constant ones, and texts that hardly ever repeat, such as names.

A column is numeric if at least 90 % of its values are numbers; any other value in it is an error.

Shapes: N rows, D values of each.
"""

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from selfadapt.core.errors import UserError
from selfadapt.data.tabular.row_encoder import Row, Table

if TYPE_CHECKING:
    from torch import Tensor

_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
_NUMERIC_SHARE = 0.9  # share of numbers above which any other value in the column is an error
_DISTINCT_SHARE = 0.5  # share of distinct texts above which they are names or free text, not categories


@dataclass(frozen=True, kw_only=True)
class Number:
    """A numeric column, fitted to the training rows."""

    name: str
    mean: float
    deviation: float
    misses: bool  # the value is missing in some training rows

    def encode(self, value: Any) -> list[float]:
        number = _number(value)
        encoded = [0.0, 1.0] if number is None else [(number - self.mean) / self.deviation, 0.0]
        return encoded if self.misses else encoded[:1]


@dataclass(frozen=True, kw_only=True)
class Category:
    """A categorical column, fitted to the training rows; None stands for missing."""

    name: str
    categories: Sequence[str | None]

    def encode(self, value: Any) -> list[float]:
        text = _text(value)
        return [float(text == category) for category in self.categories]


Column = Number | Category


@dataclass(frozen=True, kw_only=True)
class ColumnEncoder:
    """Encodes rows column by column."""

    columns: Sequence[Column]

    def encode(self, table: Table) -> "Tensor":
        import torch

        return torch.tensor(self.encode_rows(table), dtype=torch.float32)

    def encode_rows(self, table: Table) -> list[list[float]]:
        """Encode rows without torch."""
        vectors = [self._encode_row(row, table.location(position)) for position, row in enumerate(table.rows)]
        self._warn_of_unknown_categories(table)
        return vectors

    def state_dict(self) -> dict[str, Any]:
        return {
            "reader": "columns",
            "numbers": {i: asdict(c) for i, c in enumerate(self.columns) if isinstance(c, Number)},
            "categories": {i: asdict(c) for i, c in enumerate(self.columns) if isinstance(c, Category)},
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "ColumnEncoder":
        columns: dict[int, Column] = {int(i): Number(**fields) for i, fields in state["numbers"].items()}
        columns |= {int(i): Category(**fields) for i, fields in state["categories"].items()}
        return cls(columns=[columns[i] for i in sorted(columns)])

    def _encode_row(self, row: Row, location: str) -> list[float]:
        values: list[float] = []
        for column in self.columns:
            if column.name not in row:
                raise UserError(f"{location} has no column {column.name!r}; add the columns of the training data")
            try:
                values += column.encode(row[column.name])
            except ValueError as error:
                raise UserError(
                    f"{location}, column {column.name!r}: {error}; the column is numeric. Correct it or leave it empty"
                ) from error
        return values

    def _warn_of_unknown_categories(self, table: Table) -> None:
        for column in self.columns:
            if not isinstance(column, Category):
                continue
            texts = Counter(_text(row[column.name]) for row in table.rows)
            unknown = {text: count for text, count in texts.items() if text not in column.categories}
            if unknown:
                example = next(iter(unknown))
                warnings.warn(
                    f"the column {column.name!r} has {sum(unknown.values())} values that do not occur in the training "
                    f"rows, such as {'a missing value' if example is None else repr(example)}; they are encoded as 0",
                    stacklevel=3,
                )


def fit_columns(table: Table) -> ColumnEncoder:
    """Fit an encoder to training rows."""
    fitted = (_fit_column(name, [row.get(name) for row in table.rows], table) for name in table.rows[0])
    columns = [column for column in fitted if column is not None]
    if not columns:
        raise UserError(f"{table.location(0)}: no column distinguishes samples; add columns of numbers or categories")
    return ColumnEncoder(columns=columns)


def _fit_column(name: str, values: Sequence[Any], table: Table) -> Column | None:
    numbers: list[float] = []
    invalid: list[int] = []
    for position, value in enumerate(values):
        try:
            number = _number(value)
        except ValueError:
            invalid.append(position)
        else:
            numbers += [] if number is None else [number]
    if not numbers and not invalid:
        return None
    if len(numbers) < _NUMERIC_SHARE * (len(numbers) + len(invalid)):
        return _fit_category(name, values)
    if invalid:
        raise UserError(
            f"{table.location(invalid[0])}, column {name!r}: {str(values[invalid[0]])!r} is not a finite number, "
            "unlike the other values of the column; correct it or leave it empty"
        )
    mean = math.fsum(numbers) / len(numbers)
    deviation = math.sqrt(math.fsum((number - mean) ** 2 for number in numbers) / len(numbers))
    if deviation == 0:
        return _fit_category(name, values)  # whether the value is missing may still be informative
    return Number(name=name, mean=mean, deviation=deviation, misses=len(numbers) < len(values))


def _fit_category(name: str, values: Sequence[Any]) -> Category | None:
    counts = Counter(_text(value) for value in values)
    if len(counts) == 1:
        return None
    if len(counts) > 2 and len(counts) > _DISTINCT_SHARE * len(values):
        warnings.warn(
            f"the column {name!r} is ignored: it has {len(counts)} different texts in {len(values)} rows. "
            "To encode it as text, use --text-column",
            stacklevel=3,
        )
        return None
    return Category(name=name, categories=sorted(counts, key=lambda text: (text is None, text or "")))


def _number(value: Any) -> float | None:
    """Return the value as a finite number, or None if it is missing."""
    text = _text(value)
    if text is None:
        return None
    try:
        number = float(value) if isinstance(value, int | float) else float(text)
    except ValueError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is not a finite number")
    return number


def _text(value: Any) -> str | None:
    """Return the value as text, or None if it is missing."""
    text = "" if value is None else str(value).strip()
    return None if text.lower() in _MISSING else text
