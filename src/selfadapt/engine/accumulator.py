"""The metrics of an epoch, accumulated over its steps.

Shapes: N samples in total, T terms of the loss.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from selfadapt.core import distributed


class Accumulator:
    """The loss, the last predicted class of each training sample, and the quantities that the method measures."""

    def __init__(self, num_samples: int, device: torch.device) -> None:
        self.sums_T2 = torch.zeros(0, 2, dtype=torch.float64)  # total and weight of each term of the loss
        self.predicted_N = torch.full((num_samples,), -1, dtype=torch.int32, device=device)
        self.moments: dict[str, list[float]] = {}  # count, sum and sum of squares of each measured quantity

    @property
    def loss(self) -> float:
        return (self.sums_T2[:, 0] / self.sums_T2[:, 1]).sum().item()

    @property
    def metrics(self) -> dict[str, float]:
        """The mean of each measured quantity, its standard error and its number of samples."""
        metrics = {}
        for name, (count, total, squares) in self.moments.items():
            if count:
                mean = total / count
                metrics[name] = mean
                metrics[f"{name}_error"] = math.sqrt(max(0.0, squares / count - mean**2) / count)
                metrics[f"{name}_count"] = count
        return metrics

    def merged(self) -> "Accumulator":
        """Return the metrics of all processes together. The loss already is the global one."""
        if distributed.world_size() == 1:
            return self
        merged = Accumulator(len(self.predicted_N), self.predicted_N.device)
        merged.sums_T2 = self.sums_T2
        merged.predicted_N = distributed.all_reduce_max(self.predicted_N.clone())
        for moments in distributed.all_gather_objects(self.moments):
            merged.add(moments)
        return merged

    def add_loss(self, sums_T2: Tensor) -> None:
        sums_T2 = sums_T2.cpu().double()
        self.sums_T2 = self.sums_T2 + sums_T2 if len(self.sums_T2) else sums_T2

    def measure(self, name: str, values: Tensor) -> None:
        """Add values per sample; NaN stands for a sample without one."""
        values = values.cpu().double()  # not every device supports double precision
        values = values[~values.isnan()]
        self.add({name: [len(values), *torch.stack([values.sum(), values.square().sum()]).tolist()]})

    def add(self, moments: Mapping[str, Sequence[float]]) -> None:
        for name, values in moments.items():
            before = self.moments.get(name, [0.0] * len(values))
            self.moments[name] = [old + new for old, new in zip(before, values, strict=True)]

    def state_dict(self) -> dict[str, Tensor]:
        return {"sums": self.sums_T2, "predicted": self.predicted_N}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.sums_T2 = state["sums"]
        self.predicted_N = state["predicted"].to(self.predicted_N.device)
