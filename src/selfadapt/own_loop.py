"""Self-adaptive training as one object for your own training loop.

It stands between a model and its labels: it keeps the targets, finds out when they start to move, gives the loss of a
step, and reports likely label errors in the end. The method is that of `selfadapt train --method sat`.

Shapes: B samples of a batch, K classes, N samples in all.
"""

from numbers import Integral
from typing import Any

from torch import Tensor

from selfadapt.loops.labelled_loss import LabelledLoss
from selfadapt.objectives.noisy_labels import SelfAdaptive, moving_cross_entropy
from selfadapt.objectives.start_epoch import AutoStart
from selfadapt.targets.store import Storage, check_momentum


class SelfAdaptiveLoss(LabelledLoss):
    """The loss of a training on labels that may be wrong.

        criterion = SelfAdaptiveLoss(labels, epochs=60)
        for epoch in range(60):
            for images, index in loader:  # index: each sample's position in `labels`
                loss = criterion(model(images), index)
                ...
            criterion.end_epoch()
        report = criterion.label_errors()

    `labels` are whole numbers from 0 on, one for each training sample. `momentum` is alpha; `start_epoch` is E_s, or
    "auto": found while training, for which one label in twenty is trained as another one until then. `state_dict`
    belongs into your checkpoint. With several processes each makes one with all labels, after
    `torch.distributed.init_process_group`. All of them may load the state of one, if it was taken after `end_epoch`;
    within an epoch, and with `Storage(sharded=True)`, each process saves and loads its own.
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
        fixed = isinstance(start_epoch, Integral)
        if not (start_epoch == "auto" or (fixed and 0 <= int(start_epoch) < max(1, epochs))):
            raise ValueError(f'start_epoch must be "auto" or from 0 to {epochs - 1}, not {start_epoch!r}')
        start = int(start_epoch) if fixed else AutoStart(seed=seed)
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
