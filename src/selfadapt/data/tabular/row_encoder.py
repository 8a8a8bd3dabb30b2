"""Row encoders, which turn the rows of a table into vectors, so that a trained run can predict new rows.

An encoder is fitted to the training rows. Its state is stored in run.json; `row_encoder_from_state` restores it.

Shapes: N rows, D values of each.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

from selfadapt.core.errors import UserError

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows, and a function that describes the location of the i-th row for error messages."""

    rows: Sequence[Row]
    location: Callable[[int], str]


class RowEncoder(Protocol):
    """Encodes rows as vectors, each independently of the others.

    Examples:
        >>> encoder = fit_columns(Table(rows=rows, location=str))
        >>> restored = row_encoder_from_state(encoder.state_dict())
        >>> vectors_ND = restored.encode(Table(rows=new_rows, location=str))
    """

    def encode(self, table: Table) -> "Tensor":
        """Encode rows.

        Args:
            table: N rows with the columns that the encoder was fitted to.

        Returns:
            A float32 tensor of N×D values.

        Raises:
            UserError: A column is missing or a value is invalid; the message contains the location of the row.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the fitted state for JSON. Its key `reader` names the kind of encoder ("columns" or "text")."""
        ...


def row_encoder_from_state(state: Mapping[str, Any]) -> RowEncoder:
    """Restore an encoder from its `state_dict`.

    Raises:
        UserError: This is not the state of an encoder.
    """
    from selfadapt.data.tabular.column_encoder import ColumnEncoder
    from selfadapt.data.text.text_encoder import TextEncoder

    restore: Mapping[str, Callable[[Mapping[str, Any]], RowEncoder]] = {
        "columns": ColumnEncoder.from_state,
        "text": TextEncoder.from_state,
    }
    try:
        return restore[state["reader"]](state)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"the encoder of rows that run.json holds is damaged: {error!r}") from error
