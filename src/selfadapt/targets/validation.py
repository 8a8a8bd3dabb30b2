"""Validation of what a user passes to a target store.

Shapes: B samples of a batch, K columns.
"""

from numbers import Integral
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from selfadapt.core.errors import NonFinitePrediction

_SUM_TOLERANCE = 0.05  # wide enough for a softmax in bfloat16


def integers(values: Any, name: str) -> Tensor:
    """A vector of integers as a tensor, from an array, a list, a table's column or a tensor."""
    if isinstance(values, Tensor) and values.dtype == torch.int64 and values.ndim == 1:
        return values
    if np.ma.isMaskedArray(values) and np.ma.is_masked(values):
        raise ValueError(f"{name} have masked values; leave those samples out")
    array = values if isinstance(values, Tensor) else np.asarray(values)
    whole = (
        not (array.is_floating_point() or array.is_complex() or array.dtype == torch.bool)
        if isinstance(array, Tensor)
        else array.dtype.kind in "iu"
    )
    if array.ndim != 1 or (len(array) and not whole):
        raise ValueError(f"{name} must be a vector of integers, not {tuple(array.shape)} {array.dtype}")
    return array.long() if isinstance(array, Tensor) else torch.from_numpy(array.astype(np.int64))


def check_momentum(momentum: float) -> float:
    if not 0 <= momentum <= 1:
        raise ValueError(f"momentum must be within 0..1, not {momentum}")
    return momentum


def check_columns(count: int, kind: str) -> None:
    if not isinstance(count, Integral) or count < 1:
        name = "num_classes" if kind == "distribution" else "num_features"
        raise ValueError(f"{name} must be a whole number of at least 1, not {count!r}")


def checked_index(index: Tensor, num_rows: int, *, unique: bool) -> Tensor:
    """Return the index as int64. Raise ValueError for a row that does not exist or, with `unique`, a repeated one."""
    if index.ndim != 1 or index.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"index must be a vector of integers, not {tuple(index.shape)} {index.dtype}")
    if not len(index):
        return index.long()
    ordered = np.sort(index.cpu().numpy())
    lowest, highest = int(ordered[0]), int(ordered[-1])
    if lowest < 0 or highest >= num_rows:
        raise ValueError(
            f"index {lowest if lowest < 0 else highest} is outside 0..{num_rows - 1}; "
            "pass each sample's position in the whole training set"
        )
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if unique and len(repeated):
        raise ValueError(
            f"sample {repeated[0]} occurs more than once in this batch; a target moves once per step, "
            "so drop the repeats (samplers that pad create them)"
        )
    return index.long()


def check_prediction(index_B: Tensor, prediction_BK: Tensor, num_columns: int, *, distribution: bool) -> None:
    """Raise ValueError unless there is one finite row per index and, for distributions, each sums to 1."""
    if prediction_BK.shape != (len(index_B), num_columns):
        raise ValueError(
            f"prediction must be {(len(index_B), num_columns)}, one row of {num_columns} for each index, "
            f"not {tuple(prediction_BK.shape)}"
        )
    if distribution and len(index_B):
        # Row by row: with as many samples as classes, a softmax over the wrong dimension has the right total.
        lowest, highest = (float(bound) for bound in prediction_BK.sum(1).aminmax())
        valid = float(prediction_BK.amin()) >= 0 and 1 - _SUM_TOLERANCE <= lowest <= highest <= 1 + _SUM_TOLERANCE
    else:
        valid = bool(prediction_BK.isfinite().all())
    if not valid:
        raise_for_prediction(index_B, prediction_BK)


def raise_for_prediction(index_B: Tensor, prediction_BK: Tensor) -> NoReturn:
    """Raise an error that names the first invalid row."""
    prediction_BK = prediction_BK.to(index_B.device)

    def first(invalid_B: Tensor) -> str:
        position = int(invalid_B.nonzero()[0])
        return f"sample {int(index_B[position])} (row {position} of the batch)"

    invalid_B = ~prediction_BK.isfinite().all(1)
    if invalid_B.any():
        count = int(invalid_B.sum())
        message = f"the prediction for {first(invalid_B)} contains NaN or infinity ({count} rows in total)"
        raise NonFinitePrediction(message, index_B[invalid_B].tolist())
    invalid_B, reason = (prediction_BK < 0).any(1), "has a negative entry"
    if not invalid_B.any():
        invalid_B, reason = (prediction_BK.sum(1) - 1).abs() > _SUM_TOLERANCE, "does not sum to 1"
    raise ValueError(f"the prediction for {first(invalid_B)} {reason}; pass probabilities: logits.softmax(1)")
