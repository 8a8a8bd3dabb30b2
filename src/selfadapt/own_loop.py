"""Self-adaptive training as one object for a training loop of one's own.

It stands between a model and its labels: it keeps the targets, finds out when they begin to move, gives the loss of a
step, and tells in the end which labels look wrong. The method is that of `selfadapt train --method sat`.

Shapes: B samples of a batch, K classes, N samples in all.
"""

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from selfadapt import processes
from selfadapt.data.loader import Batch
from selfadapt.engine.fit import Accumulator
from selfadapt.evaluation.recovery import Verdicts, judge
from selfadapt.objectives.noisy_labels import SelfAdaptive
from selfadapt.objectives.objective import Metrics, Progress
from selfadapt.objectives.start import AutoStart
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
        wrong_first = criterion.verdicts().order_N

    `labels` are whole numbers from 0 on, one for each training sample. `momentum` is alpha; `start_epoch` is E_s, or
    "auto": found while training, for which one label in twenty is trained as another one until then. `state_dict`
    belongs into your checkpoint. Under DistributedDataParallel every process makes one with all labels, once the
    group is there.
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
        labels_N = torch.as_tensor(labels).cpu()
        if not labels_N.numel():
            raise ValueError("labels are empty; pass one for each training sample")
        if epochs < 1:
            raise ValueError(f"epochs must be at least 1, not {epochs}")
        if start_epoch != "auto" and not (isinstance(start_epoch, int) and 0 <= start_epoch < epochs):
            raise ValueError(f'start_epoch must be "auto" or from 0 to {epochs - 1}, not {start_epoch!r}')
        classes = int(labels_N.max()) + 1 if num_classes is None else num_classes
        self.targets = TargetStore.from_labels(labels_N, classes, momentum, storage)
        self.labels_N, self.epochs = labels_N.long(), epochs
        start = start_epoch if isinstance(start_epoch, int) else AutoStart(seed=seed)
        self._method = SelfAdaptive(momentum=momentum, start_epoch=start)
        self.epoch = 0
        self.history: list[Metrics] = []
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._measured, self._seen = Accumulator(0, torch.device("cpu")), 0

    @property
    def started(self) -> int | None:
        """E_s, the epochs before the targets move, once it is known."""
        return self._method.started(self.history, self.epochs)

    @property
    def _progress(self) -> Progress:
        return Progress(self.epoch, self.epoch / self.epochs, self.epochs, self.history)

    def __call__(self, logits: Tensor, index: Tensor) -> Tensor:
        """Move the targets of this batch towards its predictions, if they move already, and return the loss.

        The mean is taken over the batches of all processes together, in which a sample may occur once.
        """
        if not logits.requires_grad:
            raise RuntimeError("these logits have no gradient; a call moves targets, so leave it to training steps")
        if logits.shape != (len(index), self.targets.rows.num_columns):
            expected = (len(index), self.targets.rows.num_columns)
            raise ValueError(f"logits must be {expected}, one row for each index, not {tuple(logits.shape)}")
        index_B = self.targets.checked_index(index)
        labels_B = self.labels_N[index_B.cpu()].to(logits.device)
        batch = Batch(logits, labels_B, index_B.to(logits.device))
        loss = self._method.loss(nn.Identity(), batch, self.targets, self._progress)
        for name, values in loss.measured.items():
            self._measured.measure(name, values)
        self._notice(len(index_B))
        (term,) = loss.terms
        return term.total * (processes.count() / processes.sum_over_all(term.weight.clone()))

    def _notice(self, samples: int) -> None:
        passes = _PASSES * len(self.labels_N)
        if self._seen <= passes < self._seen + samples:
            warnings.warn("the samples were seen twice without end_epoch(); call it after each epoch", stacklevel=3)
        self._seen += samples

    def end_epoch(self) -> None:
        """Close an epoch: what was measured in it decides whether the targets begin to move."""
        self.history.append(self._measured.merged().metrics)
        self.epoch += 1
        self._begin_epoch()

    def verdicts(self) -> Verdicts:
        """What the targets say of each label: the suggested class, how confidently, and the order of suspicion."""
        evidence = self._method.evidence(self._progress)
        assert evidence is not None
        share_N = torch.full((len(self.labels_N),), evidence.label_share)
        return judge(self._rows, self.labels_N, weighted=evidence.weighed, label_share_N=share_N)

    def _rows(self) -> Iterator[Tensor]:
        return (self.targets.read(index_n) for index_n in torch.arange(len(self.labels_N)).split(_PIECE))

    def state_dict(self) -> dict[str, Any]:
        return {
            "targets": self.targets.state_dict(),
            "epoch": self.epoch,
            "history": [dict(metrics) for metrics in self.history],
            "moments": dict(self._measured.moments),
            "seen": self._seen,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.targets.load_state_dict(state["targets"])
        self.epoch, self.history = state["epoch"], list(state["history"])
        self._begin_epoch()
        self._measured.add(state["moments"])
        self._seen = state["seen"]
