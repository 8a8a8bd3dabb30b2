"""The target store: t_i for every sample i, moved towards the model's predictions (Equation 2).

    t_i  <-  alpha t_i + (1 - alpha) p_i

`update` is the only writer after the store is made. It checks what it is given before it touches a row.
The store is no module and no buffer: a module's buffers are overwritten by rank 0 under data-parallel training.

Shapes: B samples of a batch, N samples in all, K columns (classes, or features of a direction).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from selfadapt.core import distributed
from selfadapt.core.errors import NonFinitePrediction, UserError
from selfadapt.targets.initial import gaussian_rows, one_hot_rows
from selfadapt.targets.int8 import Int8Rows
from selfadapt.targets.rows import DenseRows, PackedRows, Rows
from selfadapt.targets.sharded import ReplicatedRows, ShardedRows
from selfadapt.targets.topk import TopKRows

Kind = Literal["distribution", "direction"]

_SUM_TOLERANCE = 0.05  # wide enough for a softmax in bfloat16


@dataclass(frozen=True, kw_only=True)
class Storage:
    """How a store keeps its rows: the number format, the device or the file they live on, and who keeps which."""

    dtype: torch.dtype = torch.float32  # float32, float16 or int8
    device: torch.device | str = "cpu"
    file: Path | None = None
    top_k: int | None = None
    sharded: bool = False

    def __post_init__(self) -> None:
        if self.top_k is not None and (self.file is not None or self.dtype != torch.float32):
            raise ValueError("top_k keeps rows in memory and in a format of its own; leave file and dtype out")

    @classmethod
    def parse(cls, text: str, *, device: torch.device | str = "cpu", file: Path | None = None) -> "Storage":
        """The storage that `--targets` names; `file` is the place to use if it asks for one."""
        sharded = text.startswith("sharded:")
        plain = text.removeprefix("sharded:")
        if plain in _FORMATS:
            return cls(dtype=_FORMATS[plain], device=device, sharded=sharded)
        if plain == "file":
            return cls(file=file, sharded=sharded)
        if plain.startswith("topk:") and plain.removeprefix("topk:").isdecimal():
            return cls(top_k=int(plain.removeprefix("topk:")), device=device, sharded=sharded)
        raise UserError(
            f"--targets {text!r} is not known; choose float32, float16, file, topk:K or int8, each also as sharded:…"
        )

    def allocate(self, num_rows: int, num_columns: int) -> Rows:
        if self.sharded:
            return ShardedRows(num_rows, lambda own_rows: self._local(own_rows, num_columns))
        rows = self._local(num_rows, num_columns)
        return rows if distributed.world_size() == 1 else ReplicatedRows(rows)

    def _local(self, num_rows: int, num_columns: int) -> PackedRows:
        device = torch.device(self.device)
        if self.file is not None:
            own = self.file if distributed.world_size() == 1 else self.file.with_suffix(f".{distributed.rank()}.bin")
            return DenseRows.in_file(own, num_rows, num_columns, self.dtype)
        if self.top_k is not None:
            return TopKRows(num_rows, num_columns, self.top_k, device)
        if self.dtype == torch.int8:
            return Int8Rows(num_rows, num_columns, device)
        return DenseRows.in_memory(num_rows, num_columns, self.dtype, device)


_FORMATS = {"float32": torch.float32, "float16": torch.float16, "int8": torch.int8}


class TargetStore:
    """A target for each of N samples, found by the sample's index."""

    def __init__(self, rows: Rows, *, momentum: float, kind: Kind = "distribution") -> None:
        check_momentum(momentum)
        self._rows = rows
        self._processes = distributed.world_size()
        self._moved = False
        self._places_N: Tensor | None = None  # where each sample was in the last batch that had it
        self.momentum = momentum
        self.kind = kind

    @classmethod
    def from_labels(
        cls, labels: Tensor, num_classes: int, momentum: float = 0.9, storage: Storage | None = None
    ) -> "TargetStore":
        """Targets that start as the given labels: t_i = one_hot(y_i)."""
        labels = torch.as_tensor(labels)
        pieces = one_hot_rows(labels, num_classes)
        return cls._filled(pieces, len(labels), num_classes, momentum, "distribution", storage)

    @classmethod
    def empty(
        cls, num_samples: int, num_classes: int, momentum: float = 0.9, storage: Storage | None = None
    ) -> "TargetStore":
        """Targets that start at zero, so that they hold the predictions alone."""
        if storage is not None and storage.top_k is not None:
            raise UserError("--targets topk:K cannot keep targets that start at nothing; choose another format")
        return cls._filled((), num_samples, num_classes, momentum, "distribution", storage)

    @classmethod
    def gaussian(
        cls,
        num_samples: int,
        num_features: int = 256,
        momentum: float = 0.7,
        seed: int = 0,
        storage: Storage | None = None,
    ) -> "TargetStore":
        """Targets that start as noise: t_i ~ N(0, I). Only their direction counts."""
        pieces = gaussian_rows(num_samples, num_features, seed)
        return cls._filled(pieces, num_samples, num_features, momentum, "direction", storage)

    @classmethod
    def _filled(
        cls,
        pieces: Iterable[tuple[Tensor, Tensor]],
        num_rows: int,
        num_columns: int,
        momentum: float,
        kind: Kind,
        storage: Storage | None,
    ) -> "TargetStore":
        storage = storage or Storage()
        if storage.top_k is not None and kind == "direction":
            raise UserError("--targets topk:K keeps probabilities; for features choose float32, float16 or int8")
        rows = storage.allocate(num_rows, num_columns)
        for index_n, rows_nK in pieces:
            rows.fill(index_n.to(rows.device), rows_nK.to(rows.device))
        return cls(rows, momentum=momentum, kind=kind)

    def __len__(self) -> int:
        return self._rows.num_rows

    @property
    def rows(self) -> Rows:
        if distributed.world_size() != self._processes:
            self._meet_other_processes()
        return self._rows

    def _meet_other_processes(self) -> None:
        """Take part in a group that was made after the store, or go on after its end."""
        rows, count = self._rows, distributed.world_size()
        if self._processes == 1 and isinstance(rows, PackedRows) and not (self._moved or rows.in_a_file):
            self._rows = ReplicatedRows(rows)
        elif count > 1 or isinstance(rows, ShardedRows):
            raise RuntimeError(
                f"this target store was made in a group of {self._processes} and is now used in one of {count} "
                "processes, where its rows would differ; make it after torch.distributed.init_process_group"
            )
        self._processes = count

    def update(
        self, index: Tensor, prediction: Tensor, *, momentum: float | None = None, rows: Tensor | None = None
    ) -> Tensor:
        """Move the rows of this batch towards the prediction and return them, without gradient.

        `momentum` stands in for the store's own for this call, for methods that ramp it, and `rows` for the rows
        that are stored, for methods that begin anew.
        """
        if momentum is not None:
            check_momentum(momentum)
        index_B = self.checked_index(index)
        prediction_BK = self._checked_prediction(index_B, prediction.detach().float())
        if self.kind == "direction":
            prediction_BK = normalize(prediction_BK, dim=1)
        return self.move(index_B, prediction_BK, momentum=momentum, rows=rows)

    def move(
        self, index_B: Tensor, prediction_BK: Tensor, *, momentum: float | None = None, rows: Tensor | None = None
    ) -> Tensor:
        """`update` for an index from a loader, and a prediction from a softmax or normalised.

        The checks would take as long as the rest when there are few classes. A prediction that is not finite is
        noticed here too, before a row is changed: a softmax makes it NaN in every column.
        """
        kept = self.rows
        looked_at = prediction_BK[:, 0] if self.kind == "distribution" else prediction_BK
        if not math.isfinite(looked_at.sum()):
            self._raise_for(index_B, prediction_BK)
        self._moved = True
        if index_B.device != kept.device or prediction_BK.device != kept.device:
            moved_BK = self.move(index_B.to(kept.device), prediction_BK.to(kept.device), momentum=momentum, rows=rows)
            return moved_BK.to(prediction_BK.device)
        share = 1 - (self.momentum if momentum is None else momentum)
        if rows is None and self.kind == "distribution":
            return kept.moved(index_B, prediction_BK, share)
        rows_BK = kept.read(index_B) if rows is None else rows.detach().to(kept.device, torch.float32, copy=True)
        if self.kind == "direction":
            rows_BK = normalize(rows_BK, dim=1)
        return kept.write(index_B, rows_BK.lerp_(prediction_BK, share))

    @torch.no_grad()
    def read(self, index: Tensor) -> Tensor:
        """The rows of these samples as float32, on the device of the index."""
        return self.rows.read(self.checked_index(index, unique=False).to(self.rows.device)).to(index.device)

    def state_dict(self) -> dict[str, Tensor]:
        """The rows as they are kept; sharded, those of this process alone, so each process saves a file of its own."""
        rows = self.rows
        if not isinstance(rows, ShardedRows):
            return rows.state_dict()
        return {**rows.state_dict(), "rank": torch.tensor(rows.own), "processes": torch.tensor(rows.parts)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from a state of the same samples, classes and format; sharded, from this process's own of as many."""
        rows = self.rows
        if isinstance(rows, ShardedRows):
            _check_owner(state, rows)
        rows.load_state_dict(state)
        self._moved = False

    def checked_index(self, index: Tensor, *, unique: bool = True) -> Tensor:
        if index.ndim != 1 or index.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"index must be a vector of whole numbers, not {tuple(index.shape)} {index.dtype}")
        if not len(index) or (unique and self._each_once(index.cpu().long())):
            return index.long()
        ordered = np.sort(index.cpu().numpy())
        least, most = ordered[0], ordered[-1]
        if least < 0 or most >= len(self):
            raise ValueError(
                f"index {least if least < 0 else most} is outside 0..{len(self) - 1}; "
                "pass each sample's position in the whole training set"
            )
        if unique:
            repeated = ordered[1:][ordered[1:] == ordered[:-1]]
            raise ValueError(
                f"sample {repeated[0]} is in this batch more than once; a target moves once a step, "
                "so drop the duplicates (a sampler that pads makes them)"
            )
        return index.long()

    def _each_once(self, index_B: Tensor) -> bool:
        """Whether these are samples of the store, each once. Sorting them takes three times as long."""
        if self._places_N is None:
            self._places_N = torch.zeros(len(self), dtype=torch.int32)
        place_B = torch.arange(len(index_B), dtype=torch.int32)
        try:
            self._places_N.index_copy_(0, index_B, place_B)
        except (IndexError, RuntimeError):  # outside
            return False
        return torch.equal(self._places_N.index_select(0, index_B), place_B)

    def _checked_prediction(self, index_B: Tensor, prediction_BK: Tensor) -> Tensor:
        expected = (len(index_B), self.rows.num_columns)
        if prediction_BK.shape != expected:
            raise ValueError(
                f"prediction must be {expected}, one row of {self.rows.num_columns} for each index, "
                f"not {tuple(prediction_BK.shape)}"
            )
        if self.kind == "distribution" and len(index_B):
            # Not the sum of all: a softmax over the samples has the right one, where they are as many as the classes.
            least, most = (float(bound) for bound in prediction_BK.sum(1).aminmax())
            fine = float(prediction_BK.amin()) >= 0 and 1 - _SUM_TOLERANCE <= least <= most <= 1 + _SUM_TOLERANCE
        else:
            fine = bool(prediction_BK.isfinite().all())
        if not fine:
            self._raise_for(index_B, prediction_BK)
        return prediction_BK

    def _raise_for(self, index_B: Tensor, prediction_BK: Tensor) -> None:
        prediction_BK = prediction_BK.to(index_B.device)

        def first(bad_B: Tensor) -> str:
            position = int(bad_B.nonzero()[0])
            return f"sample {int(index_B[position])} (row {position} of the batch)"

        bad_B = ~prediction_BK.isfinite().all(1)
        if bad_B.any():
            message = f"the prediction for {first(bad_B)} holds NaN or infinity; {int(bad_B.sum())} rows do"
            raise NonFinitePrediction(message, index_B[bad_B].tolist())
        bad_B = (prediction_BK < 0).any(1)
        if bad_B.any():
            raise ValueError(
                f"the prediction for {first(bad_B)} has a negative entry; pass probabilities: logits.softmax(1)"
            )
        bad_B = (prediction_BK.sum(1) - 1).abs() > _SUM_TOLERANCE
        raise ValueError(f"the prediction for {first(bad_B)} does not sum to 1; pass probabilities: logits.softmax(1)")


def _check_owner(state: dict[str, Tensor], rows: ShardedRows) -> None:
    """Other samples' rows may have the same shape, and nothing else would tell."""
    rank, count = int(state.get("rank", 0)), int(state.get("processes", 1))  # one that is not sharded keeps all rows
    if (rank, count) != (rows.own, rows.parts):
        raise ValueError(
            f"the saved targets are the rows of rank {rank} of {count} processes, but this is rank {rows.own} of "
            f"{rows.parts}; with Storage(sharded=True) save and load a file for each process, in as many processes"
        )


def check_momentum(momentum: float) -> float:
    if not 0 <= momentum <= 1:
        raise ValueError(f"momentum must be within 0..1, not {momentum}")
    return momentum
