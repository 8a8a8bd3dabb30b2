"""What `predict` prints for an input. Does not import torch."""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from selfadapt.core.errors import UserError
from selfadapt.data.forms.known_forms import read_table
from selfadapt.data.tabular.row_encoder import Table

TABLES = (".csv", ".parquet")
ARRAYS = (".npy", ".npz")
_NOT_A_NUMBER = "the output of the network is NaN; check that its values are scaled like the training data"


def prediction(guess: str, confidence: float, threshold: float | None) -> dict[str, Any]:
    """The record of an input: the network abstains up to the threshold, if there is one."""
    if math.isnan(confidence):
        return {"error": _NOT_A_NUMBER}
    abstains = threshold is not None and confidence <= threshold
    return {"class": None if abstains else guess, "abstained": abstains, "confidence": confidence, "guess": guess}


def empty(path: Path) -> dict[str, Any]:
    """The record of a file without inputs."""
    return {"path": str(path), "error": "it is empty"}


def numbered(path: Path, records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The records of the inputs of an array."""
    place = -1
    for place, record in enumerate(records):
        yield {"path": f"{path}[{place}]", **record}
    if place < 0:
        yield empty(path)


def table_to_predict(path: Path, reader: Mapping[str, Any] | None) -> Table:
    """The rows of a file, which the encoder of the training rows turns into vectors."""
    if reader is None or path.suffix not in TABLES:
        wanted = "an .npy of N×D floats" if reader is None else "a .csv or .parquet with its columns"
        raise UserError(f"{path} cannot be read: the model takes vectors; give {wanted}")
    return Table(rows=read_table(path), location=lambda i: f"{path}, row {i + 2}")
