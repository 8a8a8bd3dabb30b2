"""Self-adaptive training as one object for a training loop of one's own.

It stands between a model and its labels: it keeps the targets, finds out when they begin to move, gives the loss of a
step, and reports likely label errors in the end. The method is that of `selfadapt train --method sat`.

Shapes: B samples of a batch, K classes, N samples in all.
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

_PIECE = 65_536  # samples judged at a time
_PASSES = 2  # over the samples without an end of the epoch, after which it seems to be forgotten


class SelfAdaptiveLoss:
    """The loss of a training on labels that may be wrong.

        criterion = SelfAdaptiveLoss(labels, epochs=60)
        for epoch in range(60):
            for images, index in loader:  # index: each sample's place in `labels`
                loss = criterion(model(images), index)
                ...
            criterion.end_epoch()
        report = criterion.label_errors()

    `labels` are whole numbers from 0 on, one for each training sample. `momentum` is alpha; `start_epoch` is E_s, or
    "auto": found while training, for which one label in twenty is trained as another one until then. `state_dict`
    belongs into your checkpoint. Under DistributedDataParallel every process makes one with all labels, once the group
    is there. All of them may load the state of one, if it was taken after `end_epoch`; within an epoch, and with
    `Storage(sharded=True)`, each process saves and loads its own.
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
        self.labels_N = _whole_numbers(labels, "labels").cpu()
        if not len(self.labels_N):
            raise ValueError("labels are empty; pass one for each training sample")
        if epochs < 1:
            raise ValueError(f"epochs must be at least 1, not {epochs}")
        fixed = isinstance(start_epoch, Integral)
        if not (start_epoch == "auto" or (fixed and 0 <= int(start_epoch) < epochs)):
            raise ValueError(f'start_epoch must be "auto" or from 0 to {epochs - 1}, not {start_epoch!r}')
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
        self._share_N = torch.ones(len(self.labels_N))  # what of each row of the store is the given label
        self.epoch = 0
        self.history: list[Metrics] = []
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._measured, self._seen = Accumulator(0, torch.device("cpu")), 0
        self._visited = [torch.zeros(0, dtype=torch.int64)]  # the samples of each step

    @property
    def started(self) -> int | None:
        """E_s, the epochs before the targets move, once it is known."""
        return self._method.started(self.history, self.epochs)

    @property
    def _progress(self) -> Progress:
        return Progress(self.epoch, self.epoch / self.epochs, self.epochs, self.history)

    def __call__(self, logits: Tensor, index: Any) -> Tensor:
        """Move the targets of this batch towards its predictions, if they move already, and return the loss.

        The mean is taken over the batches of all processes together, in which a sample may occur once.
        """
        if not logits.requires_grad:
            raise RuntimeError("these logits have no gradient; a call moves targets, so leave it to training steps")
        index_B = self.targets.checked_index(_whole_numbers(index, "index"))
        expected = (len(index_B), self.targets.rows.num_columns)
        if not len(index_B):
            raise ValueError("the batch is empty; leave such a step out")
        if logits.shape != expected:
            raise ValueError(f"logits must be {expected}, one row for each index, not {tuple(logits.shape)}")
        labels_B = self.labels_N[index_B.cpu()].to(logits.device)
        batch = Batch(logits, labels_B, index_B.to(logits.device))
        loss = self._method.loss(nn.Identity(), batch, self.targets, self._progress)
        for name, values in loss.measured.items():
            self._measured.measure(name, values)
        self._note_share(index_B.cpu())
        self._notice(len(index_B) * distributed.world_size())
        (term,) = loss.terms
        return term.total * (distributed.world_size() / distributed.all_reduce_sum(term.weight.clone()))

    def _note_share(self, index_B: Tensor) -> None:
        """Keep count of how much of these rows is still the given label: not all samples need be in every epoch."""
        auto, start = self._method.start_epoch, self.started
        share_B = self._share_N[index_B]
        if start is not None and self.epoch >= start:
            if isinstance(auto, AutoStart) and self.epoch == start:
                first = auto.label_share(self.history, start)
                share_B = first + (1 - first) * share_B
            share_B = share_B * self.targets.momentum
        elif isinstance(auto, AutoStart):  # the store holds running means, which begin with the first prediction
            share_B = share_B * RUNNING_MEAN_MOMENTUM if self.history else torch.zeros_like(share_B)
        self._share_N[index_B] = share_B
        self._visited.append(index_B)

    def _notice(self, samples: int) -> None:
        passes = _PASSES * len(self.labels_N)
        if self._seen <= passes < self._seen + samples:
            warnings.warn("the samples were seen twice without end_epoch(); call it after each epoch", stacklevel=3)
        self._seen += samples

    def end_epoch(self) -> None:
        """Close an epoch, in all processes: what was measured in it decides whether the targets begin to move."""
        if not self._seen:
            raise RuntimeError("there was no step since the last end_epoch(); call it once after each epoch")
        whole = Accumulator(0, torch.device("cpu"))
        for moments in distributed.all_gather_objects(self._measured.moments):
            whole.add(cast(dict[str, list[float]], moments))
        index_n = torch.cat(self._visited)
        rows_n2 = distributed.all_gather_rows(torch.stack([index_n.double(), self._share_N[index_n].double()], 1))
        self._share_N[rows_n2[:, 0].long()] = rows_n2[:, 1].float()
        self.history.append(whole.metrics)
        self.epoch += 1
        self._begin_epoch()

    def label_errors(self) -> LabelErrorReport:
        """What the targets say of each label. Of a sample that was never seen nothing is known: P(wrong) is 0.5."""
        if self.started is None or self.epoch <= self.started:
            moves = "when is not found yet" if self.started is None else f"they begin to move after {self.started}"
            raise RuntimeError(f"the targets have not moved: {self.epoch} epochs are done, and {moves}; train on first")
        return judge(self._rows, self.labels_N, weighted=self._method.reweight, label_share_N=self._share_N)

    def _rows(self) -> Iterator[Tensor]:
        return (self.targets.read(index_n) for index_n in torch.arange(len(self.labels_N)).split(_PIECE))

    def state_dict(self) -> dict[str, Any]:
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
        """Go on from a state of this very training: the same labels, epochs, start, momentum and seed."""
        missing = sorted(set(self.state_dict()) - set(state))
        if missing:
            raise ValueError(f"this is no state of a SelfAdaptiveLoss: it has no {', '.join(missing)}")
        other = [name for name, own in self._about.items() if state["about"].get(name) != own]
        if other:
            raise ValueError(f"the state is of a training with another {', '.join(other)}; make the loss with the same")
        _check_process(state)
        self.targets.load_state_dict(state["targets"])
        self._share_N = state["share"].cpu().clone()
        self.epoch, self.history = state["epoch"], list(state["history"])
        self._begin_epoch()
        self._measured.add(state["moments"])
        self._seen, self._visited = state["seen"], [state["visited"].cpu()]


def _check_process(state: Mapping[str, Any]) -> None:
    """Until `end_epoch` each process knows its own steps alone."""
    (rank, count), own, parts = state["process"], distributed.rank(), distributed.world_size()
    if state["seen"] and (rank, count) != (own, parts):
        raise ValueError(
            f"the state was taken within an epoch by rank {rank} of {count} processes, but this is rank {own} of "
            f"{parts}; save after end_epoch(), or save and load a file for each process, in as many processes"
        )


def _whole_numbers(values: Any, name: str) -> Tensor:
    """A vector of whole numbers as a tensor, from an array, a list, a table's column or a tensor."""
    array = values if isinstance(values, Tensor) else np.asarray(values)
    whole = (
        not (array.is_floating_point() or array.is_complex() or array.dtype == torch.bool)
        if isinstance(array, Tensor)
        else array.dtype.kind in "iu"
    )
    if array.ndim != 1 or (len(array) and not whole):
        raise ValueError(f"{name} must be a vector of whole numbers, not {tuple(array.shape)} {array.dtype}")
    return array.long() if isinstance(array, Tensor) else torch.from_numpy(array.astype(np.int64))
