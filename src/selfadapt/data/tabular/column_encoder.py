"""The reader for tables of numbers and categories.

- A number becomes (x - mean) / deviation. A missing one becomes 0, which is the mean, and where the training rows miss
  any there is a further value that is 1 for missing and else 0.
- A category becomes one value for each category of the training rows, 1 for its own and else 0. Missing is a category
  of its own where training rows miss any. One that was never seen gives zeros.
- Columns that cannot tell samples apart are left out: those of one value, and words of which hardly any comes twice,
  such as names or free text.

A column holds numbers if nearly all of its values are numbers; a word among them is then a mistake, and an error.

Shapes: N rows, D values of each.
"""

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from selfadapt.core.errors import UserError
from selfadapt.data.tabular.row_encoder import Row, Table

_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
_NEARLY_ALL = 0.9  # the share of numbers that makes a word among them a mistake
_HARDLY_ANY = 0.5  # the share of different words from which on they are names, not categories


@dataclass(frozen=True, kw_only=True)
class Number:
    """A column of numbers as the training rows have it."""

    name: str
    mean: float
    deviation: float
    misses: bool

    @property
    def size(self) -> int:
        return 2 if self.misses else 1

    def values(self, value: Any) -> list[float]:
        number = _number(value)
        if number is None:
            return [0.0, 1.0][: self.size]
        return [(number - self.mean) / self.deviation, 0.0][: self.size]


@dataclass(frozen=True, kw_only=True)
class Category:
    """A column of categories as the training rows have it; None stands for missing."""

    name: str
    categories: Sequence[str | None]

    @property
    def size(self) -> int:
        return len(self.categories)

    def values(self, value: Any) -> list[float]:
        word = _word(value)
        return [float(word == known) for known in self.categories]


Column = Number | Category


@dataclass(frozen=True, kw_only=True)
class ColumnReader:
    """Makes a vector of a row, column by column."""

    columns: Sequence[Column]

    @property
    def size(self) -> int:
        return sum(column.size for column in self.columns)

    def read(self, row: Row) -> Tensor:
        return torch.tensor(self._values(row, "the row"), dtype=torch.float32)

    def read_all(self, table: Table) -> Tensor:
        values = [self._values(row, table.place(position)) for position, row in enumerate(table.rows)]
        self._tell_unseen(table)
        return torch.tensor(values, dtype=torch.float32).view(len(values), self.size)

    def state_dict(self) -> dict[str, Any]:
        return {
            "reader": "columns",
            "numbers": {i: asdict(c) for i, c in enumerate(self.columns) if isinstance(c, Number)},
            "categories": {i: asdict(c) for i, c in enumerate(self.columns) if isinstance(c, Category)},
        }

    def _values(self, row: Row, place: str) -> list[float]:
        values: list[float] = []
        for column in self.columns:
            if column.name not in row:
                raise UserError(f"{place} lacks the column {column.name!r}")
            try:
                values += column.values(row[column.name])
            except ValueError as error:
                raise UserError(
                    f"{place}, column {column.name!r}: {error}; the column holds numbers. Correct it or leave it empty"
                ) from error
        return values

    def _tell_unseen(self, table: Table) -> None:
        for column in self.columns:
            if isinstance(column, Category):
                words = Counter(_word(row[column.name]) for row in table.rows)
                unseen = {word: count for word, count in words.items() if word not in column.categories}
                if unseen:
                    example = next(iter(unseen))
                    warnings.warn(
                        f"the column {column.name!r} holds {sum(unseen.values())} values that no training row has, "
                        f"such as {'nothing' if example is None else repr(example)}; they count as none of the others",
                        stacklevel=4,
                    )


def fit_columns(table: Table, *, categorical: Sequence[str] = ()) -> ColumnReader:
    """The reader for these training rows. The columns `categorical` hold categories even if they look like numbers."""
    names = list(table.rows[0])
    if unknown := [name for name in categorical if name not in names]:
        raise UserError(f"there is no column {unknown[0]!r}; the columns are {', '.join(names)}")
    columns: list[Column] = []
    for name in names:
        values = [row.get(name) for row in table.rows]
        column = _category(name, values) if name in categorical else _column(name, values, table)
        if column is not None:
            columns.append(column)
    if not columns:
        raise UserError(
            f"{table.place(0)}: no column tells samples apart; besides the label there must be numbers or categories"
        )
    return ColumnReader(columns=columns)


def from_state(state: Mapping[str, Any]) -> ColumnReader:
    columns: dict[int, Column] = {int(i): Number(**fields) for i, fields in state["numbers"].items()}
    columns |= {int(i): Category(**fields) for i, fields in state["categories"].items()}
    return ColumnReader(columns=[columns[i] for i in sorted(columns)])


def _column(name: str, values: Sequence[Any], table: Table) -> Column | None:
    numbers: list[float | None] = []
    words: list[int] = []  # where something stands that is no number
    for position, value in enumerate(values):
        try:
            numbers.append(_number(value))
        except ValueError:
            words.append(position)
    given = [number for number in numbers if number is not None]
    if not given and not words:
        return None
    if len(given) < _NEARLY_ALL * (len(given) + len(words)):
        return _category(name, values)
    if words:
        raise UserError(
            f"{table.place(words[0])}, column {name!r}: {str(values[words[0]])!r} is no finite number, as the others "
            "of its column are; correct it or leave it empty"
        )
    mean = math.fsum(given) / len(given)
    deviation = math.sqrt(math.fsum((number - mean) ** 2 for number in given) / len(given))
    misses = len(given) < len(values)
    if deviation == 0:
        return _category(name, values)  # there or missing may still tell something
    return Number(name=name, mean=mean, deviation=deviation, misses=misses)


def _category(name: str, values: Sequence[Any]) -> Category | None:
    counts = Counter(_word(value) for value in values)
    if len(counts) == 1:
        return None
    if len(counts) > 2 and len(counts) > _HARDLY_ANY * len(values):
        warnings.warn(
            f"the column {name!r} holds {len(counts)} different words in {len(values)} rows and is left out; "
            "--text-column reads text",
            stacklevel=4,
        )
        return None
    return Category(name=name, categories=sorted(counts, key=lambda word: (word is None, word or "")))


def _number(value: Any) -> float | None:
    """The value as a finite number; None if it is missing."""
    word = _word(value)
    if word is None:
        return None
    try:
        number = float(word) if not isinstance(value, int | float) else float(value)
    except ValueError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{word!r} is no finite number")
    return number


def _word(value: Any) -> str | None:
    """The value as a word; None if it is missing."""
    word = "" if value is None else str(value).strip()
    return None if word.lower() in _MISSING else word
