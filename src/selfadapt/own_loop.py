"""Self-adaptive training as one object for a custom training loop.

`SelfAdaptiveLoss` keeps the targets, finds the epoch from which they are updated, computes the loss of a step, and
reports likely label errors in the end. The method is that of `selfadapt train --method sat`.

Shapes: B samples of a batch, K classes, N training samples.
"""

import hashlib
import warnings
from collections.abc import Iterator, Mapping
from numbers import Integral
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from selfadapt.core import distributed
from selfadapt.data.loader import Batch
from selfadapt.engine.fit import Accumulator
from selfadapt.evaluation.label_errors.recovery import judge
from selfadapt.evaluation.label_errors.report import LabelErrorReport
from selfadapt.objectives.noisy_labels import SelfAdaptive
from selfadapt.objectives.objective import Metrics, Progress
from selfadapt.objectives.start_epoch import RUNNING_MEAN_MOMENTUM, AutoStart
from selfadapt.targets.store import Storage, TargetStore

_BLOCK = 65_536  # samples judged at a time
_PASSES = 2  # over the samples without end_epoch(), after which a warning is given


class SelfAdaptiveLoss:
    """Loss for training on labels that may be wrong.

    Put its `state_dict` into your checkpoint. Under DistributedDataParallel, create it in every process, with all
    labels, after the process group. All processes may load the state of one of them if it was saved after `end_epoch`.
    Within an epoch, and with `Storage(sharded=True)`, each process saves and loads its own state.

    Args:
        labels: Given label of each training sample, integers from 0, of length N.
        epochs: Number of epochs of the training.
        num_classes: Number of classes K. Default: the largest label + 1.
        momentum: Momentum of the targets (alpha).
        start_epoch: Epochs before the targets are updated (E_s), or "auto" to find it during training. Until it is
            found, "auto" trains one label in twenty as another class.
        seed: Seed of the labels that "auto" changes.
        storage: How targets are stored. Default: float32 in memory.

    Raises:
        ValueError: If `labels` are empty or not integers, or `epochs` or `start_epoch` is out of range.

    Example:
        >>> criterion = SelfAdaptiveLoss(labels, epochs=60)
        >>> for epoch in range(60):
        ...     for images, index in loader:  # index: position of each sample in `labels`
        ...         loss = criterion(model(images), index)
        ...         optimizer.zero_grad()
        ...         loss.backward()
        ...         optimizer.step()
        ...     criterion.end_epoch()
        >>> report = criterion.label_errors()
    """

    def __init__(
        self,
        labels: Any,
        *,
        epochs: int,
        num_classes: int | None = None,
        momentum: float = 0.9,
        start_epoch: int | str = "auto",
        seed: int = 0,
        storage: Storage | None = None,
    ) -> None:
        self.labels_N = _integers(labels, "labels")
        if not len(self.labels_N):
            raise ValueError("labels are empty; pass one label for each training sample")
        if epochs < 1:
            raise ValueError(f"epochs must be at least 1, not {epochs}")
        fixed = isinstance(start_epoch, Integral)
        if not (start_epoch == "auto" or (fixed and 0 <= int(start_epoch) < epochs)):
            raise ValueError(f'start_epoch must be "auto" or a number from 0 to {epochs - 1}, not {start_epoch!r}')
        classes = int(self.labels_N.max()) + 1 if num_classes is None else num_classes
        self.targets = TargetStore.from_labels(self.labels_N, classes, momentum, storage)
        self.epochs = epochs
        start = int(start_epoch) if fixed else AutoStart(seed=seed)
        self._method = SelfAdaptive(momentum=momentum, start_epoch=start)
        digest = hashlib.blake2b(self.labels_N.numpy().tobytes(), digest_size=16).hexdigest()
        self._about = {
            "labels": digest,
            "epochs": int(epochs),
            "start_epoch": str(start),
            "seed": int(seed),
            "momentum": float(momentum),
        }
        self._share_N = torch.ones(len(self.labels_N))  # share of the given label in each row of the store
        self.epoch = 0
        self.history: list[Metrics] = []
        self._reset_epoch()

    def _reset_epoch(self) -> None:
        self._measured, self._seen = Accumulator(0, torch.device("cpu")), 0
        self._visited = [torch.zeros(0, dtype=torch.int64)]  # the samples of each step

    @property
    def started(self) -> int | None:
        """E_s, the number of epochs before the targets are updated; None while it is unknown."""
        return self._method.started(self.history, self.epochs)

    @property
    def _progress(self) -> Progress:
        return Progress(self.epoch, self.epoch / self.epochs, self.epochs, self.history)

    def __call__(self, logits: Tensor, index: Any) -> Tensor:
        """Update the targets of this batch, from the start epoch on, and return the loss.

        The mean is taken over the batches of all processes together. A sample may occur in them once.

        Args:
            logits: Outputs of the model, of shape (B, K), with a gradient.
            index: Position of each sample in `labels`, integers of length B.

        Returns:
            The loss, a scalar.

        Raises:
            RuntimeError: If the logits are without gradient: a call updates targets, so it belongs to training steps.
            ValueError: If the batch is empty or the shapes do not match.
        """
        if not logits.requires_grad:
            raise RuntimeError(
                "the logits do not require a gradient; call this in training steps only, because it updates targets"
            )
        index_B = self.targets.checked_index(_integers(index, "index"))
        expected = (len(index_B), self.targets.rows.num_columns)
        if not len(index_B):
            raise ValueError("the batch is empty; skip such a step")
        if logits.shape != expected:
            raise ValueError(f"logits must be {expected}, one row for each index, not {tuple(logits.shape)}")
        labels_B = self.labels_N[index_B].to(logits.device)
        batch = Batch(logits, labels_B, index_B.to(logits.device))
        loss = self._method.loss(nn.Identity(), batch, self.targets, self._progress)
        for name, values in loss.measured.items():
            self._measured.measure(name, values)
        self._update_share(index_B)
        self._warn_if_endless(len(index_B) * distributed.world_size())
        (term,) = loss.terms
        return term.total * (distributed.world_size() / distributed.all_reduce_sum(term.weight.clone()))

    def _update_share(self, index_B: Tensor) -> None:
        """Update the share of the given label in these rows. Samples need not be in every epoch."""
        auto, start = self._method.start_epoch, self.started
        share_B = self._share_N[index_B]
        if start is not None and self.epoch >= start:
            if isinstance(auto, AutoStart) and self.epoch == start:
                first = auto.label_share(self.history, start)
                share_B = first + (1 - first) * share_B
            share_B = share_B * self.targets.momentum
        elif isinstance(auto, AutoStart):  # the store holds running means, which start with the first prediction
            share_B = share_B * RUNNING_MEAN_MOMENTUM if self.history else torch.zeros_like(share_B)
        self._share_N[index_B] = share_B
        self._visited.append(index_B)

    def _warn_if_endless(self, samples: int) -> None:
        passes = _PASSES * len(self.labels_N)
        if self._seen <= passes < self._seen + samples:
            warnings.warn("all samples were used twice without end_epoch(); call it after each epoch", stacklevel=3)
        self._seen += samples

    def end_epoch(self) -> None:
        """End an epoch, in all processes. Its metrics decide whether the targets are updated from now on.

        Raises:
            RuntimeError: If it is called twice without a step in between.
        """
        if not self._seen:
            raise RuntimeError("end_epoch() was called twice without a step in between; call it once after each epoch")
        whole = Accumulator(0, torch.device("cpu"))
        for moments in distributed.all_gather_objects(self._measured.moments):
            whole.add(cast(dict[str, list[float]], moments))
        index_n = torch.cat(self._visited)
        rows_n2 = distributed.all_gather_rows(torch.stack([index_n.double(), self._share_N[index_n].double()], 1))
        self._share_N[rows_n2[:, 0].long()] = rows_n2[:, 1].float()
        self.history.append(whole.metrics)
        self.epoch += 1
        self._reset_epoch()

    def label_errors(self) -> LabelErrorReport:
        """Report likely label errors, judged by the targets.

        P(wrong) is not calibrated. It is 0.5 for a sample that was never used.

        Returns:
            A `LabelErrorReport` in the order of `labels`. Outlier scores are not computed.

        Raises:
            RuntimeError: If the targets have not been updated yet.
        """
        if self.started is None or self.epoch <= self.started:
            start = (
                "the start epoch is not known yet" if self.started is None else f"updates start after {self.started}"
            )
            raise RuntimeError(
                f"the targets have not been updated: {self.epoch} epochs are done, and {start}; continue training"
            )
        return judge(self._rows, self.labels_N, weighted=self._method.reweight, label_share_N=self._share_N)

    def _rows(self) -> Iterator[Tensor]:
        return (self.targets.read(index_n) for index_n in torch.arange(len(self.labels_N)).split(_BLOCK))

    def state_dict(self) -> dict[str, Any]:
        """The targets and the progress of the training, for a checkpoint."""
        return {
            "about": dict(self._about),
            "targets": self.targets.state_dict(),
            "share": self._share_N,
            "epoch": self.epoch,
            "history": [dict(metrics) for metrics in self.history],
            "moments": dict(self._measured.moments),
            "seen": self._seen,
            "visited": torch.cat(self._visited),
            "process": [distributed.rank(), distributed.world_size()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state of the same training.

        Raises:
            ValueError: If labels, epochs, start epoch, momentum or seed differ, or the state is of another process.
        """
        missing = sorted(set(self.state_dict()) - set(state))
        if missing:
            raise ValueError(f"this is not a state of SelfAdaptiveLoss: it lacks {', '.join(missing)}")
        other = [name for name, own in self._about.items() if state["about"].get(name) != own]
        if other:
            raise ValueError(
                f"the state is of a training with another {', '.join(other)}; create the loss with the same"
            )
        _check_process(state)
        self.targets.load_state_dict(state["targets"])
        self._share_N = state["share"].cpu().clone()
        self.epoch, self.history = state["epoch"], list(state["history"])
        self._reset_epoch()
        self._measured.add(state["moments"])
        self._seen, self._visited = state["seen"], [state["visited"].cpu()]


def _check_process(state: Mapping[str, Any]) -> None:
    """Within an epoch, a state holds the steps of one process only."""
    (rank, count), own, processes = state["process"], distributed.rank(), distributed.world_size()
    if state["seen"] and (rank, count) != (own, processes):
        raise ValueError(
            f"the state was saved within an epoch by rank {rank} of {count} processes, but this is rank {own} of "
            f"{processes}; save after end_epoch(), or save and load one file per process with as many processes"
        )


def _integers(values: Any, name: str) -> Tensor:
    """A vector of integers as a tensor, from an array, a list, a pandas Series or a tensor."""
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise ValueError(f"{name} must be a vector of integers, not {array.shape} {array.dtype}")
    return torch.from_numpy(array.astype(np.int64))
