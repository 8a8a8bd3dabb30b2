"""Predictions for many samples and classes: the probability of the label and the 16 largest of the other classes.

The remaining classes share what is left evenly. With up to 17 classes nothing is lost. The tables are kept in temporary
files, in which each process holds its own samples.

Shapes: N samples, n of a block, K classes, M of them in a row (the label first).
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from selfadapt.core import distributed
from selfadapt.data.shards.passes import Passes
from selfadapt.data.shards.shard_file import release

_LARGEST = 16
_ROWS = 16_384  # read at a time
_SMALLEST = 1e-9  # class probability


@dataclass(frozen=True)
class SparseRows:
    """Some samples: classes and probabilities, those of the label in the first column, and the mass of the others."""

    position_n: Tensor
    class_nM: Tensor
    value_nM: Tensor
    rest_n: Tensor
    num_classes: int

    @classmethod
    def of(cls, predicted_nK: Tensor, labels_n: Tensor, position_n: Tensor) -> "SparseRows":
        labels_n1, classes = labels_n.unsqueeze(1), predicted_nK.shape[1]
        others = predicted_nK.scatter(1, labels_n1, -1.0).topk(min(_LARGEST, classes - 1), 1)
        value_nM = torch.cat((predicted_nK.gather(1, labels_n1), others.values), 1)
        class_nM = torch.cat((labels_n1, others.indices), 1)
        rest_n = (1 - value_nM.sum(1)).clamp_min(0) if value_nM.shape[1] < classes else torch.zeros(len(labels_n))
        return cls(position_n, class_nM, value_nM, rest_n, classes)

    @property
    def labels_n(self) -> Tensor:
        return self.class_nM[:, 0]

    def __getitem__(self, rows: Tensor | slice) -> "SparseRows":
        parts = (self.position_n[rows], self.class_nM[rows], self.value_nM[rows], self.rest_n[rows])
        return SparseRows(*parts, self.num_classes)

    def split(self, rows: int) -> Iterator["SparseRows"]:
        yield from (self[slice(start, start + rows)] for start in range(0, len(self.position_n), rows))

    def sharpened(self, temperature: float) -> "SparseRows":
        """The predictions at this temperature, q ∝ p^b."""
        value_nM = self.value_nM.clamp_min(_SMALLEST) ** temperature
        number = self.num_classes - value_nM.shape[1]
        rest_n = number * (self.rest_n / max(1, number)).clamp_min(_SMALLEST) ** temperature
        total_n = value_nM.sum(1) + rest_n
        value_nM = value_nM / total_n.unsqueeze(1)
        return SparseRows(self.position_n, self.class_nM, value_nM, rest_n / total_n, self.num_classes)

    def entropy(self) -> Tensor:
        number = max(1, self.num_classes - self.value_nM.shape[1])
        known_n = -(self.value_nM * self.value_nM.clamp_min(1e-12).log()).sum(1)
        return known_n - self.rest_n * (self.rest_n / number).clamp_min(1e-12).log()


class SparsePredictions:
    """The predictions of the samples of this process."""

    def __init__(self, passes: Passes, num_classes: int) -> None:
        self.passes, self.num_classes = passes, num_classes
        self._folder = tempfile.TemporaryDirectory(prefix="selfadapt-predictions-")
        shape, home = (max(1, len(passes)), 1 + min(_LARGEST, num_classes - 1)), Path(self._folder.name)
        self._class_nM = np.memmap(home / "classes", np.int32, "w+", shape=shape)
        self._value_nM = np.memmap(home / "values", np.float32, "w+", shape=shape)
        self._rest_n = passes.own(torch.float32)

    def put(self, block: slice, predicted_nK: Tensor, labels_n: Tensor) -> None:
        place = self.passes.place(block)
        rows = SparseRows.of(predicted_nK, labels_n, torch.arange(block.start, block.stop))
        self._class_nM[place], self._value_nM[place] = rows.class_nM.numpy(), rows.value_nM.numpy()
        self._rest_n[place] = rows.rest_n
        self._release()

    def blocks(self) -> Iterator[SparseRows]:
        """Yield the samples of this process."""
        for start in range(0, len(self.passes), _ROWS):
            yield self._rows(torch.arange(start, min(start + _ROWS, len(self.passes))))
            self._release()

    def take(self, position_n: Tensor) -> SparseRows:
        """The rows of these samples, from all processes."""
        mine_n = position_n[(position_n >= self.passes.start) & (position_n < self.passes.stop)]
        own = self._rows(mine_n - self.passes.start)
        self._release()
        gather = distributed.all_gather_rows
        parts = gather(own.position_n), gather(own.class_nM), gather(own.value_nM), gather(own.rest_n)
        return SparseRows(*parts, self.num_classes)

    def _rows(self, place_n: Tensor) -> SparseRows:
        class_nM, value_nM = (table_nM[place_n.numpy()] for table_nM in (self._class_nM, self._value_nM))
        return SparseRows(
            place_n + self.passes.start,
            torch.from_numpy(class_nM).long(),
            torch.from_numpy(value_nM),
            self._rest_n[place_n],
            self.num_classes,
        )

    def _release(self) -> None:
        release(self._class_nM)
        release(self._value_nM)
