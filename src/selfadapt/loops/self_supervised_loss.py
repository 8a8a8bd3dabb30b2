"""Self-adaptive training without labels as one object for your own training loop (`selfadapt pretrain`).

Shapes: B samples of a batch, D dimensions of a target.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from selfadapt.loops.loop_loss import LoopLoss
from selfadapt.objectives.objective import mean_of
from selfadapt.objectives.pretraining.encoders import Ramp
from selfadapt.objectives.pretraining.self_supervised import moving_distances
from selfadapt.targets.store import Storage, TargetStore
from selfadapt.targets.validation import check_momentum


class SelfSupervisedLoss(LoopLoss):
    """The loss of an encoder that learns without labels, towards targets that start as noise.

        criterion = SelfSupervisedLoss(len(dataset), epochs=800)
        for epoch in range(800):
            for images, index in loader:  # index: each sample's position in `dataset`
                with torch.no_grad():
                    projected = momentum_encoder(images)
                loss = criterion(predictor(encoder(images)), index, projected)
                ...
            criterion.end_epoch()

    `momentum` is alpha; two numbers are its values at the start and at the end of training. Moving the momentum encoder
    after each step is left to your loop. `state_dict` is used as that of `SelfAdaptiveLoss`.
    """

    def __init__(
        self,
        num_samples: int,
        *,
        epochs: int,
        dimensions: int = 256,
        momentum: float | tuple[float, float] = 0.7,
        seed: int = 0,
        storage: Storage | None = None,
    ) -> None:
        first, last = momentum if isinstance(momentum, tuple) else (momentum, momentum)
        self.momentum = Ramp(check_momentum(first), check_momentum(last))
        if num_samples < 1:
            raise ValueError(f"num_samples must be at least 1, not {num_samples}")
        targets = TargetStore.gaussian(num_samples, dimensions, first, seed, storage)
        super().__init__(targets, epochs=epochs, settings={"momentum": str(self.momentum), "seed": int(seed)})

    def __call__(
        self,
        predicted: Tensor | Sequence[Tensor],
        index: Any,
        projected: Tensor | Sequence[Tensor] | None = None,
    ) -> Tensor:
        """Move the targets of this batch towards its projections, and return the loss of its predictions.

        `predicted` and `projected` are B×D, or a sequence of them, one for each view. Without a momentum encoder leave
        `projected` out: the targets then move towards the predictions.
        """
        views = [predicted] if isinstance(predicted, Tensor) else list(predicted)
        moves = views if projected is None else [projected] if isinstance(projected, Tensor) else list(projected)
        for view_BD in views:
            index_B = self._checked("predictions", view_BD, self.targets.rows.num_columns, index)
        shapes = {tuple(view_BD.shape) for view_BD in (*views, *moves)}
        if len(shapes) > 1 or len(moves) != len(views):
            raise ValueError(f"each view needs a prediction and a projection of one shape, not {sorted(shapes)}")
        losses_B = moving_distances(
            [view_BD.float() for view_BD in views],
            [view_BD.detach().float() for view_BD in moves],
            self.targets,
            index_B.to(views[0].device),
            self.momentum.at(self._progress.fraction),
        )
        self._count(index_B)
        return self._mean(mean_of(losses_B))

    def _phase(self) -> str:
        return f"the targets move with momentum {self.momentum.at(self._progress.fraction):.3g}"
