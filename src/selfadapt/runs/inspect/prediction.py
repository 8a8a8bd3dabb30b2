"""What `predict` prints for an input. Does not import torch."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from selfadapt.data.forms.known_forms import read_table
from selfadapt.data.tabular.row_encoder import Table

Records = Iterator[dict[str, Any]]
TABLES = (".csv", ".parquet")
ARRAYS = (".npy", ".npz")
_EMPTY = "it is empty"
_NOT_A_NUMBER = "the output of the network is NaN; check that its values are scaled like the training data"


def prediction(guess: str, confidence: float, threshold: float | None) -> dict[str, Any]:
    """The record of an input: the network abstains up to the threshold, if there is one."""
    if math.isnan(confidence):
        return {"error": _NOT_A_NUMBER}
    abstains = threshold is not None and confidence <= threshold
    return {"class": None if abstains else guess, "abstained": abstains, "confidence": confidence, "guess": guess}


def array_records(path: Path, count: int, records: Records) -> Records:
    """The records of the inputs of an array, with their positions."""
    if not count:
        yield {"path": str(path), "error": _EMPTY}
        return
    for place, record in enumerate(records):
        yield {"path": f"{path}[{place}]", **record}


def table_records(path: Path, records: Callable[[Table], Records]) -> Records:
    """The records of the rows of a table, with their row numbers."""
    rows = read_table(path)
    if not rows:
        yield {"path": str(path), "error": _EMPTY}
        return
    for number, record in enumerate(records(Table(rows=rows, location=lambda i: f"{path}, row {i + 2}")), start=2):
        yield {"path": str(path), "row": number, **record}
