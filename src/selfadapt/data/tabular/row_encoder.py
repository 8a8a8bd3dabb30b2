"""Readers: what makes a vector of a raw row, so that a run can be asked about new rows.

A reader is one file, named in `_HOMES`. It holds a class with the methods below, a function that
fits one to the training rows of a `Table`, and `from_state(state)`. Its state goes into JSON and is kept with the run.

Shapes: N rows, D values of each.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast

from torch import Tensor

Row = Mapping[str, Any]
_HOMES = {"columns": "selfadapt.data.tabular.column_encoder", "text": "selfadapt.data.text.text_encoder"}  # by name


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows, and the words that tell a user where the i-th of them stands."""

    rows: Sequence[Row]
    place: Callable[[int], str]


class RowEncoder(Protocol):
    """Makes vectors of rows, the same for the same row whenever it is asked."""

    @property
    def size(self) -> int:
        """D."""
        ...

    def read(self, row: Row) -> Tensor:
        """One row as D values; a UserError names the column that is wrong."""
        ...

    def read_all(self, table: Table) -> Tensor:
        """N×D; a UserError names the row too."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What was fitted, for JSON; `reader` is its name in `_HOMES`."""
        ...


def row_encoder_from_state(state: Mapping[str, Any]) -> RowEncoder:
    """The reader as it was when its state was taken."""
    name = state["reader"]
    if name not in _HOMES:
        raise ValueError(f"{name!r} is not the name of a reader")
    return cast(RowEncoder, import_module(_HOMES[name]).from_state(state))
