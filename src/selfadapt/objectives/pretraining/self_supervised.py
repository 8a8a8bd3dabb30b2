"""Self-supervised self-adaptive training (Section 6, Algorithm 3): targets that start as noise, one view per image.

    t_i ~ N(0, I) in R^256                                          before training
    p_i = g(f(x_i)),   z_i = f_m(x_i)                               on the same view
    t_i <- alpha t_i/|t_i| + (1 - alpha) z_i/|z_i|
    L   = 1/B sum_i | p_i/|p_i| - t_i/|t_i| |^2
    theta_m <- beta theta_m + (1 - beta) theta                      after the optimiser's step

alpha 0.7 and beta 0.99 for small images; 0.5 → 0.8 and 0.99 → 1 along BYOL's cosine for ImageNet.

With two views, for which the paper gives no pseudo-code, each view has its p and its z; the target moves towards the
mean of the two normalised z; the loss is the mean over the two views.

Two more kinds of targets are those of Figure 2: `noise`, which never moves, and `random-network`, the output of another
network with frozen random weights.

Shapes: B samples of a batch, D dimensions, N samples in total.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import normalize

from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.models.backbone import Backbone, initialise
from selfadapt.objectives.method import Task
from selfadapt.objectives.moving_targets import MovingTargets
from selfadapt.objectives.objective import Progress
from selfadapt.objectives.pretraining.encoders import (
    NO_MOMENTUM_ENCODER,
    EncodedView,
    Encoders,
    Pretraining,
    Ramp,
    normalised_squared_distance,
)
from selfadapt.targets.store import Storage, TargetStore

_ALPHA, _FROZEN = Ramp(0.7, 0.7), Ramp(1, 1)


def moving_distances(
    predicted: Sequence[Tensor], projected: Sequence[Tensor], targets: TargetStore, index_B: Tensor, momentum: float
) -> Tensor:
    """Move the targets towards the projections z, one B×D for each view, and return the loss of each sample."""
    z_BD = torch.stack([normalize(view_BD, dim=1) for view_BD in projected]).mean(0)
    rows_BD = targets.move(index_B, z_BD, momentum=momentum)
    return torch.stack([normalised_squared_distance(view_BD, rows_BD) for view_BD in predicted]).mean(0)


def mean_distance(views: Sequence[EncodedView], targets: Sequence[Tensor]) -> Tensor:
    """Return the normalised squared distance of predictions and targets (B×D), averaged over the views."""
    pairs = zip(views, targets, strict=True)
    return torch.stack([normalised_squared_distance(view.predicted_BD, rows_BD) for view, rows_BD in pairs]).mean(0)


@dataclass(frozen=True, kw_only=True)
class SelfSupervised(Pretraining):
    description = "self-adaptive training without labels"
    paper = MovingTargets.paper

    momentum: Ramp = setting(
        _ALPHA,
        "momentum of the targets (alpha); 0.5:0.8 increases over training",
        option="--target-momentum",
        aliases=("--momentum",),
        parse=Ramp.parse,
    )
    seed: int = 0  # of the initial targets

    def suited(self, task: Task) -> Self:
        return replace(super().suited(task), seed=task.seed)

    def initial_targets(self, labels_N: Tensor, num_classes: int, storage: Storage) -> TargetStore | None:
        return TargetStore.gaussian(len(labels_N), self.dimensions, self.momentum.start, self.seed, storage)

    def losses_with_targets(
        self, encoders: Encoders, batch: Batch, views: Sequence[EncodedView], targets: TargetStore, progress: Progress
    ) -> Tensor:
        projected = [encoders.momentum_encoded(image, view) for image, view in zip(batch.views, views, strict=True)]
        predicted = [view.predicted_BD for view in views]
        return moving_distances(predicted, projected, targets, batch.index, self.momentum.at(progress.fraction))


@dataclass(frozen=True, kw_only=True)
class FixedNoise(SelfSupervised):
    """Targets that stay the initial noise (Figure 2)."""

    description = "fitting fixed noise"

    predictor: bool = setting(False, "use a predictor after the projector")
    beta: Ramp = NO_MOMENTUM_ENCODER
    momentum: Ramp = _FROZEN

    def losses_with_targets(
        self, encoders: Encoders, batch: Batch, views: Sequence[EncodedView], targets: TargetStore, progress: Progress
    ) -> Tensor:
        return mean_distance(views, [targets.stored(batch.index)] * len(views))


@dataclass(frozen=True, kw_only=True)
class RandomNetwork(Pretraining):
    """Targets from another network with frozen random weights (Figure 2).

    Its batch normalisation uses batch statistics: with the initial running statistics its outputs for different images
    are nearly parallel (a cosine above 0.9), so that there is next to nothing to fit.
    """

    description = "fitting a random network"
    paper = MovingTargets.paper

    predictor: bool = setting(False, "use a predictor after the projector")
    beta: Ramp = _FROZEN

    def build(self, backbone: Backbone, num_classes: int) -> Encoders:
        encoders = super().build(backbone, num_classes)
        initialise(encoders.get_submodule("momentum_encoder").modules())
        return encoders

    def losses(self, encoders: Encoders, batch: Batch, views: Sequence[EncodedView]) -> Tensor:
        pairs = zip(batch.views, views, strict=True)
        return mean_distance(views, [encoders.momentum_encoded(image, view) for image, view in pairs])
