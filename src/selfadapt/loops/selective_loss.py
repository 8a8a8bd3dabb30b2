"""Self-adaptive training with abstention as one object for your own training loop (`--method selective`)."""

from typing import Any

from torch import Tensor

from selfadapt.loops.labelled_loss import LabelledLoss
from selfadapt.objectives.selective import Selective, abstain_confidence
from selfadapt.targets.store import Storage
from selfadapt.targets.validation import check_momentum


class SelectiveLoss(LabelledLoss):
    """The loss of a network that may abstain: it has one output more than there are classes, the last one.

        criterion = SelectiveLoss(labels, epochs=300)
        for epoch in range(300):
            for images, index in loader:  # index: each sample's position in `labels`
                loss = criterion(model(images), index)
                ...
            criterion.end_epoch()
        outputs = model(new_images)
        classes, confidence = outputs[:, :-1].argmax(1), SelectiveLoss.confidence(outputs)

    `start_epoch` epochs of cross entropy over the classes come first. Otherwise it is used as `SelfAdaptiveLoss` is.
    """

    def __init__(
        self,
        labels: Any,
        *,
        epochs: int,
        num_classes: int | None = None,
        momentum: float = 0.99,
        start_epoch: int = 0,
        storage: Storage | None = None,
    ) -> None:
        if not 0 <= start_epoch < max(1, epochs):
            raise ValueError(f"start_epoch must be from 0 to {epochs - 1}, not {start_epoch!r}")
        method = Selective(momentum=check_momentum(momentum), start_epoch=int(start_epoch))
        super().__init__(method, labels, epochs=epochs, num_classes=num_classes, storage=storage, settings={})

    @staticmethod
    def confidence(outputs: Tensor) -> Tensor:
        """-log p[abstain] for outputs B×(K+1): abstain where it is low."""
        return abstain_confidence(outputs)["abstain"]
