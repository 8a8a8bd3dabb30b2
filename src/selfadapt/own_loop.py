"""Self-adaptive training as one object for a custom training loop.

`SelfAdaptiveLoss` keeps the targets, finds the epoch from which they are updated, computes the loss of a step, and
reports likely label errors in the end. The method is that of `selfadapt train --method sat`.

Shapes: B samples of a batch, K classes, N training samples.
"""

from numbers import Integral
from typing import Any

from torch import Tensor

from selfadapt.loops.labelled_loss import LabelledLoss
from selfadapt.objectives.noisy_labels import SelfAdaptive
from selfadapt.objectives.self_adaptive_loss import moving_cross_entropy
from selfadapt.objectives.start_epoch import AutoStart
from selfadapt.targets.store import Storage
from selfadapt.targets.validation import check_momentum, integers


class SelfAdaptiveLoss(LabelledLoss):
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
            found, "auto" trains one label in twenty, at most about 1,000, as another class.
        seed: Seed of the labels that "auto" changes.
        storage: How targets are stored. Default: float32 in memory.

    Raises:
        ValueError: If `labels` are empty or not integers, or `epochs` or `start_epoch` is out of range.

    Examples:
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
        labels = integers(labels, "labels")
        fixed = isinstance(start_epoch, Integral)
        if not (start_epoch == "auto" or (fixed and 0 <= int(start_epoch) < max(1, epochs))):
            raise ValueError(f'start_epoch must be "auto" or a number from 0 to {epochs - 1}, not {start_epoch!r}')
        start = int(start_epoch) if fixed else AutoStart().suited(max(1, len(labels)), seed)
        method = SelfAdaptive(momentum=check_momentum(momentum), start_epoch=start)
        super().__init__(
            method, labels, epochs=epochs, num_classes=num_classes, storage=storage, settings={"seed": int(seed)}
        )

    def _begin_epoch(self) -> None:
        super()._begin_epoch()
        auto, started = isinstance(self._method.start_epoch, AutoStart), self.started
        # In the first such epoch of "auto" the rows are running means, not targets yet.
        self._targets_move = started is not None and self.epoch >= started + auto

    def _loss(self, logits: Tensor, index_B: Tensor) -> Tensor:
        if self._targets_move:
            return moving_cross_entropy(logits, self.targets, index_B)
        return super()._loss(logits, index_B)
