"""What the losses with labels share: the labels, when the targets start to move, and the likely label errors.

Shapes: B samples of a batch, K classes, N samples in all.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from selfadapt.data.batch import Batch
from selfadapt.evaluation.label_errors.recovery import judge
from selfadapt.evaluation.label_errors.report import LabelErrorReport
from selfadapt.loops.loop_loss import LoopLoss
from selfadapt.objectives.noisy_labels import NoisyLabels
from selfadapt.objectives.selective import Selective
from selfadapt.objectives.self_adaptive_loss import check_masked
from selfadapt.objectives.start_epoch import RUNNING_MEAN_MOMENTUM, AutoStart
from selfadapt.targets.store import Storage, TargetStore
from selfadapt.targets.validation import integers

_PIECE = 65_536  # samples judged at a time
_LOGITS = nn.Identity()  # the network of a batch that is logits already


class LabelledLoss(LoopLoss):
    """A loss whose targets start as the given labels and move from epoch E_s on."""

    def __init__(
        self,
        method: NoisyLabels | Selective,
        labels: Any,
        *,
        epochs: int,
        num_classes: int | None,
        storage: Storage | None,
        settings: Mapping[str, Any],
    ) -> None:
        self.labels_N = integers(labels, "labels").cpu()
        if not len(self.labels_N):
            raise ValueError("labels are empty; pass one label for each training sample")
        classes = int(self.labels_N.max()) + 1 if num_classes is None else num_classes
        self._method = method
        self._share_N = torch.ones(len(self.labels_N))  # of each row that is the given label, before this epoch
        super().__init__(
            TargetStore.from_labels(self.labels_N, classes, method.momentum, storage),
            epochs=epochs,
            settings={
                "labels": hashlib.blake2b(self.labels_N.numpy().tobytes(), digest_size=16).hexdigest(),
                "start_epoch": str(method.start_epoch),
                "momentum": float(method.momentum),
                **settings,
            },
        )

    @property
    def started(self) -> int | None:
        """E_s, the number of epochs before the targets move, once it is known."""
        return self._method.started(self.history, self.epochs)

    def __call__(self, logits: Tensor, index: Any) -> Tensor:
        """Update the targets of this batch, from the start epoch on, and return the loss.

        The mean is taken over the batches of all processes together. A sample may occur in them once.

        Args:
            logits: Outputs of the model, one row for each index, with a gradient. -inf masks a class.
            index: Position of each sample in `labels`, integers of length B.

        Returns:
            The loss, a scalar.

        Raises:
            RuntimeError: If the logits are without gradient: a call updates targets, so it belongs to training steps.
            ValueError: If the batch is empty, the shapes do not match, or logits are NaN or +inf. On the CPU also if
                the label or target of a sample is a masked class.
        """
        index_B = self._checked("logits", logits, self.targets.rows.num_columns + self._method.extra_outputs, index)
        if logits.device.type == "cpu" and not math.isfinite(logits.detach().sum()):  # other devices would wait
            self._check_masked(logits.detach(), index_B)
        loss = self._loss(logits, index_B)
        self._count(index_B)
        return loss

    def _check_masked(self, logits_BO: Tensor, index_B: Tensor) -> None:
        """Raise a ValueError unless the logits that are not finite mask classes that no sample here learns."""
        classes = self.targets.rows.num_columns
        targets_BK = one_hot(self.labels_N[index_B], classes).float()
        if self.started is not None and self.epoch >= self.started:
            targets_BK += self.targets.read(index_B)
        check_masked(logits_BO[:, :classes], targets_BK, index_B)
        if not logits_BO[:, classes:].isfinite().all():
            raise ValueError("the last logit, for abstention, must be finite")

    def _loss(self, logits: Tensor, index_B: Tensor) -> Tensor:
        labels_B = self.labels_N[index_B].to(logits.device)
        batch = Batch(logits, labels_B, index_B.to(logits.device))
        return self._mean(self._method.loss(_LOGITS, batch, self.targets, self._progress))

    def _close(self, visits_N: Tensor) -> None:
        self._share_N = self._shares(visits_N)

    def _shares(self, visits_N: Tensor) -> Tensor:
        """How much of each row is still its label after these visits: not every sample is in every epoch."""
        share_N = self._share_N.clone()
        for visit in range(int(visits_N.max())):
            index_n = (visits_N > visit).nonzero().squeeze(1)
            share_N[index_n] = self._share_after_a_visit(share_N[index_n])
        return share_N

    def _share_after_a_visit(self, share_n: Tensor) -> Tensor:
        start_epoch, started = self._method.start_epoch, self.started
        if started is not None and self.epoch >= started:
            if isinstance(start_epoch, AutoStart) and self.epoch == started:
                first = start_epoch.label_share(self.history, started)
                share_n = first + (1 - first) * share_n
            return share_n * self.targets.momentum
        if isinstance(start_epoch, AutoStart):  # the rows are running means, which start as the first prediction
            return share_n * RUNNING_MEAN_MOMENTUM if self.history else torch.zeros_like(share_n)
        return share_n

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
        evidence = self._method.evidence(self._progress)
        assert evidence is not None
        samples_n, visits_n = self._visits().unbind(1)
        visits_N = torch.zeros(len(self.labels_N), dtype=torch.int64).index_put_((samples_n,), visits_n)
        shares_N = self._shares(visits_N)
        return judge(self._rows, self.labels_N, weighted=evidence.reweighted, label_share_N=shares_N)

    def _rows(self) -> Iterator[Tensor]:
        return (self.targets.read(index_n) for index_n in torch.arange(len(self.labels_N)).split(_PIECE))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "share": self._share_N}

    def _check_state(self, state: Mapping[str, Any]) -> None:
        super()._check_state(state)
        share_N = state["share"]
        if not (isinstance(share_N, Tensor) and share_N.is_floating_point() and share_N.shape == self._share_N.shape):
            raise ValueError(f"share must be {len(self._share_N)} numbers, one for each sample")
        if not ((share_N >= 0) & (share_N <= 1)).all():
            raise ValueError("share must be from 0 to 1")
        try:
            self._method.started(state["history"], self.epochs)
        except KeyError as error:
            raise ValueError(f"its history lacks {error}") from None

    def _assign_state(self, state: Mapping[str, Any]) -> None:
        super()._assign_state(state)
        self._share_N = state["share"].float().cpu().clone()

    def _phase(self) -> str:
        if self.started is None:
            return "when the targets start to move is not known yet"
        moving = "the targets move" if self.epoch >= self.started else "the targets start to move"
        return f"{moving} from epoch {self.started} on"
