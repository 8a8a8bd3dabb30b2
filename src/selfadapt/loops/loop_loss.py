"""What every loss for your own training loop shares: targets, epochs, checks of a batch, and its state.

Shapes: B samples of a batch, N samples in all.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from selfadapt.core import distributed
from selfadapt.engine.accumulator import Accumulator
from selfadapt.objectives.objective import Loss, Metrics, Progress
from selfadapt.targets.store import TargetStore

Batch = TypeVar("Batch")

_PASSES = 2  # over the samples without end_epoch(), after which it seems to be forgotten


class LoopLoss(ABC):
    """A loss that moves the targets of the samples it is called with.

    A subclass computes the loss of a batch in `__call__`, between `_checked` and `_count`.
    """

    def __init__(self, targets: TargetStore, *, epochs: int, settings: Mapping[str, Any]) -> None:
        """`settings` must be equal to those of a loss whose state is loaded."""
        if int(epochs) != epochs or epochs < 1:
            raise ValueError(f"epochs must be a whole number of at least 1, not {epochs!r}")
        self.targets, self.epochs = targets, int(epochs)
        self._about = {"epochs": self.epochs, **settings}
        self.epoch = 0
        self.history: list[Metrics] = []
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._measured = Accumulator(0, torch.device("cpu"))
        self.seen = 0  # samples since the last end_epoch(), of all processes
        self._visited: list[Tensor] = []  # the samples of each step

    @property
    def _progress(self) -> Progress:
        fraction = min(1.0, (self.epoch + self.seen / len(self.targets)) / self.epochs)
        return Progress(self.epoch, fraction, self.epochs, self.history)

    def _checked(self, name: str, outputs: Tensor, columns: int, index: Any) -> Tensor:
        """The index on the CPU, if it fits the targets and the network's outputs, B×`columns`."""
        if not isinstance(outputs, Tensor) or not outputs.requires_grad:
            raise RuntimeError(
                f"the {name} do not require a gradient; call this in training steps only, because it updates targets"
            )
        index_B = self.targets.checked_index(index).cpu()
        expected = (len(index_B), columns)
        if not len(index_B):
            raise ValueError("the batch is empty; skip such a step")
        if outputs.shape != expected:
            raise ValueError(f"{name} must be {expected}, one row for each index, not {tuple(outputs.shape)}")
        return index_B

    def _count(self, index_B: Tensor) -> None:
        """Note the samples of a step."""
        self._visited.append(index_B)
        before, passes = self.seen, _PASSES * len(self.targets)
        self.seen += len(index_B) * distributed.world_size()
        if before <= passes < self.seen:
            warnings.warn("all samples were used twice without end_epoch(); call it after each epoch", stacklevel=3)

    def _mean(self, loss: Loss) -> Tensor:
        """The loss over the batches of all processes. Data-parallel training divides by the number of processes."""
        for name, values in loss.measured.items():
            self._measured.measure(name, values)
        (term,) = loss.terms
        processes = distributed.world_size()
        if processes == 1:
            return term.total / term.weight
        return term.total * (processes / distributed.all_reduce_sum(term.weight.clone()))

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Iterate over one epoch of a loader, and close the epoch after the last batch.

        Args:
            loader: The batches of an epoch.

        Yields:
            The batches, unchanged.

        Examples:
            >>> for inputs, index in criterion.batches(loader):
            ...     loss = criterion(model(inputs), index)
        """
        yield from loader
        self.end_epoch()

    def end_epoch(self) -> None:
        """Close an epoch, in all processes. `batches` does it after the last batch.

        Raises:
            RuntimeError: If the loss was not called since the last time.
        """
        if not self.seen:
            raise RuntimeError("end_epoch() was called twice without a step in between; call it once after each epoch")
        whole = Accumulator(0, torch.device("cpu"))
        for moments in distributed.all_gather_objects(self._measured.moments):
            whole.add(moments)
        self._close(_largest_visits(self._visits(), len(self.targets)))
        self.history.append(whole.metrics)
        self.epoch += 1
        self._begin_epoch()

    def _visits(self) -> Tensor:
        """How often this process saw each sample since the last end_epoch() (n×2: sample, visits)."""
        if not self._visited:
            return torch.zeros(0, 2, dtype=torch.int64)
        samples_n, counts_n = torch.cat(self._visited).unique(return_counts=True)
        return torch.stack([samples_n, counts_n], 1)

    def _close(self, visits_N: Tensor) -> None:  # noqa: B027 - most have nothing to do
        """What a subclass does at the end of an epoch, given how often each sample was seen in it."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs to resume, with a loss that is created with the same arguments."""
        return {
            "about": dict(self._about),
            "targets": self.targets.state_dict(),
            "epoch": self.epoch,
            "history": [dict(metrics) for metrics in self.history],
            "moments": dict(self._measured.moments),
            "seen": self.seen,
            "visited": torch.cat([torch.zeros(0, dtype=torch.int64), *self._visited]),
            "process": [distributed.rank(), distributed.world_size()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from the `state_dict` of a loss that was created with the same arguments.

        Args:
            state: What `state_dict` returned.

        Raises:
            ValueError: If the state is damaged, or of a loss with other arguments. Nothing is loaded then.
        """
        missing = sorted(set(self.state_dict()) - set(state))
        if missing:
            raise ValueError(f"this is not a state of {type(self).__name__}: it lacks {', '.join(missing)}")
        try:
            self._check_state(state)
            self.targets.load_state_dict(state["targets"])  # which checks the rows before it changes one
        except (TypeError, AttributeError, RuntimeError, ValueError) as error:
            raise ValueError(f"this is not a state of this {type(self).__name__}: {error}") from error
        self._assign_state(state)

    def _check_state(self, state: Mapping[str, Any]) -> None:
        """Raise a ValueError, or an error of its types, that says what is wrong with a state."""
        other = [name for name, own in self._about.items() if state["about"].get(name) != own]
        if other:
            raise ValueError(
                f"the state was saved with other values of {', '.join(other)}; create the loss with the same"
            )
        (rank, count), seen, visited_n = state["process"], state["seen"], state["visited"]
        if not all(type(number) is int and number >= 0 for number in (state["epoch"], seen, rank, count)):
            raise ValueError("epoch, seen and process must be whole numbers")
        if not isinstance(state["history"], list) or len(state["history"]) != state["epoch"]:
            raise ValueError(f"history must be the metrics of each of its {state['epoch']} epochs")
        measured = [value for metrics in state["history"] for value in metrics.values()]
        measured += [value for moments in state["moments"].values() for value in moments]
        if not all(isinstance(value, int | float) for value in measured):
            raise ValueError("history and moments must hold numbers")
        if any(len(moments) != 3 for moments in state["moments"].values()):
            raise ValueError("moments must be a count, a sum and a sum of squares for each name")
        if visited_n.dtype != torch.int64:
            raise ValueError("visited must be positions of samples")
        self.targets.checked_index(visited_n, unique=False)
        _check_process(rank, count, seen)

    def _assign_state(self, state: Mapping[str, Any]) -> None:
        """Take over a state that is checked."""
        self.epoch, self.history = state["epoch"], [dict(metrics) for metrics in state["history"]]
        self._begin_epoch()
        self._measured.add(state["moments"])
        self.seen, self._visited = state["seen"], [state["visited"].cpu()]

    @abstractmethod
    def _phase(self) -> str:
        """What happens to the targets at this point, in a few words."""

    def __repr__(self) -> str:
        samples, columns = len(self.targets), self.targets.rows.num_columns
        settings = "".join(f", {name}={value}" for name, value in self._about.items() if name != "labels")
        about = f"{samples:,} × {columns:,} targets{settings}; epoch {self.epoch}: {self._phase()}"
        return f"{type(self).__name__}({about})"


def _largest_visits(visits_n2: Tensor, num_samples: int) -> Tensor:
    """How often each sample moved: one that two processes have, as samplers that pad make it, moves once (N)."""
    visits_m2 = distributed.all_gather_rows(visits_n2)
    visits_N = torch.zeros(num_samples, dtype=torch.int64)
    return visits_N.scatter_reduce_(0, visits_m2[:, 0], visits_m2[:, 1], "amax")


def _check_process(rank: int, count: int, seen: int) -> None:
    """Within an epoch, a state holds the steps of one process only."""
    own, processes = distributed.rank(), distributed.world_size()
    if seen and (rank, count) != (own, processes):
        raise ValueError(
            f"the state was saved within an epoch by rank {rank} of {count} processes, but this is rank {own} of "
            f"{processes}; save after end_epoch(), or save and load one file per process with as many processes"
        )
