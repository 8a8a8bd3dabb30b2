"""What `predict` prints for an input. Does not import torch."""

import math
from typing import Any

TABLES = (".csv", ".parquet")
ARRAYS = (".npy", ".npz")
EMPTY = "it is empty"
_NOT_A_NUMBER = "the output of the network is NaN; check that its values are scaled like the training data"


def prediction(guess: str, confidence: float, threshold: float | None) -> dict[str, Any]:
    """The record of an input: the network abstains up to the threshold, if there is one."""
    if math.isnan(confidence):
        return {"error": _NOT_A_NUMBER}
    abstains = threshold is not None and confidence <= threshold
    return {"class": None if abstains else guess, "abstained": abstains, "confidence": confidence, "guess": guess}
