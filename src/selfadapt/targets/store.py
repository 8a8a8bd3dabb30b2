"""The target store: t_i for every sample i, moved towards the model's predictions (Equation 2).

    t_i  <-  alpha t_i + (1 - alpha) p_i

Only `update`, and `move`, which is `update` without validation, write to a store that has been created. `update`
validates its input before it changes a row. The store is neither a module nor a buffer, because data-parallel training
overwrites buffers with those of rank 0.

Shapes: B samples of a batch, N samples in total, K columns (classes, or features of a direction).
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from selfadapt.core import distributed
from selfadapt.core.errors import UserError
from selfadapt.data.batch import Dealt
from selfadapt.targets.initial import gaussian_rows, one_hot_rows
from selfadapt.targets.int8 import Int8Rows
from selfadapt.targets.rows import DenseRows, PackedRows, Rows, zeros
from selfadapt.targets.sharded import ReplicatedRows, ShardedRows
from selfadapt.targets.topk import TopKRows
from selfadapt.targets.validation import (
    check_columns,
    check_momentum,
    check_prediction,
    checked_index,
    integers,
    raise_for_prediction,
)

Kind = Literal["distribution", "direction"]

_FORMATS = {"float32": torch.float32, "float16": torch.float16, "int8": torch.int8}


@dataclass(frozen=True, kw_only=True)
class Storage:
    """How a target store keeps its rows.

    Args:
        dtype: Number format: torch.float32, torch.float16 or torch.int8.
        device: Device on which rows are updated, and stored unless `on_host` or `file` is given.
        on_host: Keep the rows in host memory, pinned if the device copies from it.
        file: Keep the rows in this memory-mapped file instead of memory.
        top_k: Keep only the k largest entries of each row, in memory.
        sharded: Distribute the rows over the processes of the group instead of replicating them.

    Raises:
        ValueError: If `top_k` is combined with `file` or `dtype`.
    """

    dtype: torch.dtype = torch.float32
    device: torch.device | str = "cpu"
    on_host: bool = False
    file: Path | None = None
    top_k: int | None = None
    sharded: bool = False

    def __post_init__(self) -> None:
        if self.top_k is not None and (self.file is not None or self.dtype != torch.float32):
            raise ValueError("top_k keeps rows in memory and has a fixed format; leave out file and dtype")

    @classmethod
    def parse(cls, text: str, *, device: torch.device | str = "cpu", file: Path | None = None) -> "Storage":
        """Parse the value of `--targets`; `file` is the path to use if it requests a file."""
        sharded, plain = text.startswith("sharded:"), text.removeprefix("sharded:")
        on_host, plain = plain.startswith("pinned:"), plain.removeprefix("pinned:")
        if plain in _FORMATS:
            return cls(dtype=_FORMATS[plain], device=device, on_host=on_host, sharded=sharded)
        if plain == "file" and not on_host:
            return cls(file=file, device=device, sharded=sharded)
        if plain.startswith("topk:") and plain.removeprefix("topk:").isdecimal():
            return cls(top_k=int(plain.removeprefix("topk:")), device=device, on_host=on_host, sharded=sharded)
        raise UserError(
            f"--targets {text!r} is not known; choose float32, float16, topk:K or int8, each also as pinned:…, or "
            "file; all also as sharded:…"
        )

    def allocate(self, num_rows: int, num_columns: int) -> Rows:
        """Allocate rows of zeros (for `top_k`: of equal entries)."""
        if self.sharded:
            return ShardedRows(num_rows, lambda count: self._allocate_local(count, num_columns))
        rows = self._allocate_local(num_rows, num_columns)
        return rows if distributed.world_size() == 1 else ReplicatedRows(rows)

    def _allocate_local(self, num_rows: int, num_columns: int) -> PackedRows:
        device = torch.device(self.device)
        if self.file is not None:
            alone = distributed.world_size() == 1
            path = self.file if alone else self.file.with_suffix(f".{distributed.rank()}.bin")
            return DenseRows.from_file(path, num_rows, num_columns, self.dtype, device)
        if self.top_k is not None:
            return TopKRows(num_rows, num_columns, self.top_k, device, on_host=self.on_host)
        if self.dtype == torch.int8:
            return Int8Rows(num_rows, num_columns, device, on_host=self.on_host)
        return DenseRows(zeros(num_rows, num_columns, dtype=self.dtype, device=device, on_host=self.on_host), device)


class TargetStore:
    """One target per training sample, addressed by the sample's index.

    Create it with `from_labels`, `empty` or `gaussian`.

    Examples:
        >>> targets = TargetStore.from_labels(labels, num_classes=10, momentum=0.9)
        >>> for index, inputs, _ in loader:
        ...     logits = model(inputs)
        ...     rows = targets.update(index, logits.softmax(1))
        ...     loss = self_adaptive_cross_entropy(logits, rows)
    """

    def __init__(self, rows: Rows, *, momentum: float, kind: Kind = "distribution") -> None:
        check_momentum(momentum)
        self._rows = rows
        self._world_size = distributed.world_size()
        self._moved = self._in_step = False
        self._places_N: Tensor | None = None  # position of each sample in the last batch that had it
        self.momentum = momentum
        self.kind = kind

    @classmethod
    def from_labels(
        cls, labels: Any, num_classes: int, momentum: float = 0.9, storage: Storage | None = None
    ) -> "TargetStore":
        """Create targets that start as the given labels: t_i = one_hot(y_i).

        Args:
            labels: Integer labels of all training samples (N): a tensor, an array or a list.
            num_classes: Number of classes K.
            momentum: Share alpha of a target that each update keeps.
            storage: How to keep the rows; float32 in memory by default.

        Returns:
            A store of N distributions over K classes.

        Raises:
            ValueError: If a label is not an integer in 0..K-1.
        """
        labels = integers(labels, "labels")
        chunks = one_hot_rows(labels, num_classes)
        return cls._filled(chunks, len(labels), num_classes, momentum, "distribution", storage)

    @classmethod
    def empty(
        cls, num_samples: int, num_classes: int, momentum: float = 0.9, storage: Storage | None = None
    ) -> "TargetStore":
        """Create targets that start at zero, so that they average predictions only.

        Args:
            num_samples: Number of training samples N.
            num_classes: Number of classes K.
            momentum: Share alpha of a target that each update keeps.
            storage: How to keep the rows; float32 in memory by default. `top_k` is not possible.

        Returns:
            A store of N rows of zeros.

        Raises:
            UserError: If `storage` has a `top_k`.
        """
        if storage is not None and storage.top_k is not None:
            raise UserError("--targets topk:K cannot store targets that start at zero; choose another format")
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
        """Create targets for features: they start as noise, t_i ~ N(0, I), and only their direction matters.

        Args:
            num_samples: Number of training samples N.
            num_features: Number of features K.
            momentum: Share alpha of a target that each update keeps.
            seed: Seed of the noise.
            storage: How to keep the rows; float32 in memory by default. `top_k` is not possible.

        Returns:
            A store of N directions.

        Raises:
            UserError: If `storage` has a `top_k`.
        """
        chunks = gaussian_rows(num_samples, num_features, seed)
        return cls._filled(chunks, num_samples, num_features, momentum, "direction", storage)

    @classmethod
    def _filled(
        cls,
        chunks: Iterable[tuple[Tensor, Tensor]],
        num_rows: int,
        num_columns: int,
        momentum: float,
        kind: Kind,
        storage: Storage | None,
    ) -> "TargetStore":
        check_columns(num_columns, kind)
        storage = storage or Storage()
        if storage.top_k is not None and kind == "direction":
            raise UserError("--targets topk:K stores probabilities; for features choose float32, float16 or int8")
        rows = storage.allocate(num_rows, num_columns)
        for index_n, rows_nK in chunks:
            rows.fill(index_n.to(rows.device), rows_nK.to(rows.device))
        return cls(rows, momentum=momentum, kind=kind)

    def __len__(self) -> int:
        return self._rows.num_rows

    @property
    def rows(self) -> Rows:
        if distributed.world_size() != self._world_size:
            self._adapt_to_process_group()
        return self._rows

    def _adapt_to_process_group(self) -> None:
        """Adapt to a process group that was created or closed after the store was created."""
        rows, world_size = self._rows, distributed.world_size()
        if self._world_size == 1 and isinstance(rows, PackedRows) and not (self._moved or rows.in_file):
            self._rows = ReplicatedRows(rows)
        elif world_size > 1 or isinstance(rows, ShardedRows):
            raise RuntimeError(
                f"this target store was created in a group of {self._world_size} processes but is used in a group of "
                f"{world_size}; create it after torch.distributed.init_process_group"
            )
        self._world_size = world_size

    @contextmanager
    def step(self, dealt: Dealt | None) -> Iterator[None]:
        """Within this block, a training loop reads and moves the targets of the samples of a batch.

        `dealt` holds their positions on the host, so that the host waits neither for an accelerator nor for other
        processes. On an accelerator, a prediction that is not finite leaves its target unchanged, and NaN is returned
        for it, by which the loop detects it.
        """
        rows, self._in_step = self.rows, True
        # Other processes need the rows, but at home each knows its own samples only.
        rows.dealt = None if dealt is not None and dealt.at_home and isinstance(rows, ReplicatedRows) else dealt
        try:
            yield
        finally:
            rows.dealt, self._in_step = None, False

    def update(
        self, index: Any, prediction: Tensor, *, momentum: float | None = None, rows: Tensor | None = None
    ) -> Tensor:
        """Move the targets of this batch towards the prediction.

        Args:
            index: Positions of the samples in the training set (B), each at most once: a tensor, an array or a list.
            prediction: Probabilities, or features for a store of directions (B×K).
            momentum: Replaces the store's momentum in this call, for methods that ramp it.
            rows: Replaces the stored rows in this call, for methods that reinitialise their targets.

        Returns:
            The updated targets (B×K, float32) on the device of the prediction, without gradient.

        Raises:
            ValueError: If an index is out of range or repeated, or the prediction has the wrong shape, a negative
                entry or rows that do not sum to 1.
            NonFinitePrediction: If the prediction contains NaN or infinity.

        Examples:
            >>> rows = targets.update(index, logits.softmax(1))
        """
        if momentum is not None:
            check_momentum(momentum)
        index_B, prediction_BK = self.checked_index(index), prediction.detach().float()
        check_prediction(index_B, prediction_BK, self.rows.num_columns, distribution=self.kind == "distribution")
        if self.kind == "direction":
            prediction_BK = normalize(prediction_BK, dim=1)
        return self.move(index_B, prediction_BK, momentum=momentum, rows=rows)

    def move(
        self, index_B: Tensor, prediction_BK: Tensor, *, momentum: float | None = None, rows: Tensor | None = None
    ) -> Tensor:
        """Do `update` without validation, for an index from a loader and a prediction from a softmax or `normalize`.

        With few classes the validation would take as long as the rest. A prediction that is not finite is still
        detected before a row changes, because a softmax makes it NaN in every column.
        """
        stored, valid_B1 = self.rows, None
        checked_Bk = prediction_BK[:, :1] if self.kind == "distribution" else prediction_BK
        if self._in_step and prediction_BK.device.type != "cpu":
            valid_B1 = checked_Bk.isfinite().all(1, keepdim=True)
        elif not math.isfinite(checked_Bk.sum()):
            raise_for_prediction(index_B, prediction_BK)
        self._moved = True
        if index_B.device != stored.device or prediction_BK.device != stored.device:
            moved_BK = self.move(
                index_B.to(stored.device), prediction_BK.to(stored.device), momentum=momentum, rows=rows
            )
            return moved_BK.to(prediction_BK.device)
        share = 1 - (self.momentum if momentum is None else momentum)
        if rows is None and self.kind == "distribution":
            return stored.move(index_B, prediction_BK, share, valid_B1)
        rows_BK = stored.read(index_B) if rows is None else rows.detach().to(stored.device, torch.float32, copy=True)
        if self.kind == "direction":
            rows_BK = normalize(rows_BK, dim=1)
        return stored.write(index_B, rows_BK.lerp_(prediction_BK, share), valid_B1)

    def stored(self, index_B: Tensor) -> Tensor:
        """Do `read` without validation, for an index from a loader."""
        return self.rows.read(index_B.to(self.rows.device)).to(index_B.device)

    @torch.no_grad()
    def read(self, index: Any) -> Tensor:
        """Return stored targets without changing them.

        Args:
            index: Positions of the samples in the training set (B).

        Returns:
            The targets (B×K, float32) on the device of the index.

        Raises:
            ValueError: If an index is out of range.
        """
        index_B = self.checked_index(index, unique=False)
        return self.rows.read(index_B.to(self.rows.device)).to(index_B.device)

    def checked_index(self, index: Any, *, unique: bool = True) -> Tensor:
        """Return the index as int64. Raise ValueError if it is out of range or, with `unique`, repeats a sample."""
        index_B = integers(index, "index")
        if unique and self._each_once(index_B.cpu()):
            return index_B
        return checked_index(index_B, len(self), unique=unique)

    def _each_once(self, index_B: Tensor) -> bool:
        """Whether every index is in range and occurs once: three times as fast as sorting them."""
        if self._places_N is None:
            self._places_N = torch.zeros(len(self), dtype=torch.int32)
        place_B = torch.arange(len(index_B), dtype=torch.int32)
        try:
            self._places_N.index_copy_(0, index_B, place_B)
        except (IndexError, RuntimeError):  # out of range
            return False
        return torch.equal(self._places_N.index_select(0, index_B), place_B)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the rows in their storage format. If sharded, these are the rows of this process only."""
        rows = self.rows
        if not isinstance(rows, ShardedRows):
            return rows.state_dict()
        return {**rows.state_dict(), "rank": torch.tensor(rows.rank), "processes": torch.tensor(rows.world_size)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Load the state of a store with the same samples, classes and format; if sharded, of the same rank.

        Args:
            state: What `state_dict` returned.

        Raises:
            ValueError: If the state is of another shape, format, rank or number of processes.
        """
        rows = self.rows
        if isinstance(rows, ShardedRows):  # the rows of another rank may have the same shape
            rank, world_size = int(state.get("rank", 0)), int(state.get("processes", 1))
            if (rank, world_size) != (rows.rank, rows.world_size):
                raise ValueError(
                    f"the saved targets are the rows of rank {rank} of {world_size} processes, but this is rank "
                    f"{rows.rank} of {rows.world_size}; with Storage(sharded=True) save and load one file for each "
                    "process, with the same number of processes"
                )
        rows.load_state_dict(state)
        self._moved = False
