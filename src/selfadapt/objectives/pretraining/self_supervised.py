"""Self-supervised self-adaptive training (Section 6, Algorithm 3): targets that start as noise, one view of an image.

    t_i ~ N(0, I) in R^256                                          before training
    p_i = g(f(x_i)),   z_i = f_m(x_i)                               on the same view
    t_i <- alpha t_i/|t_i| + (1 - alpha) z_i/|z_i|
    L   = 1/B sum_i | p_i/|p_i| - t_i/|t_i| |^2
    theta_m <- beta theta_m + (1 - beta) theta                      after the optimiser's step

alpha 0.7 and beta 0.99 for small images; 0.5 → 0.8 and 0.99 → 1 along BYOL's cosine for ImageNet.

With two views, of which the paper gives no pseudo-code: each view has its p and its z; the target moves by the mean of
the two normalised z; the loss is the mean over the two views.

Two more kinds of targets are those of Figure 2: `noise`, which never moves, and `random-network`, the output of another
network that is frozen as it was drawn.

Shapes: B samples of a batch, D dimensions, N samples in all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.models.heads import Backbone, draw_anew
from selfadapt.objectives.method import Task
from selfadapt.objectives.noisy_labels import NoisyLabels
from selfadapt.objectives.objective import Progress
from selfadapt.objectives.pretraining.encoders import (
    NO_MOMENTUM_ENCODER,
    Encoders,
    Pretraining,
    Ramp,
    View,
    normalised_squared_distance,
)
from selfadapt.targets.store import Storage, TargetStore

_ALPHA, _FROZEN = Ramp(0.7, 0.7), Ramp(1, 1)


@dataclass(frozen=True, kw_only=True)
class SelfSupervised(Pretraining):
    description: ClassVar[str] = "self-adaptive training without labels"
    paper: ClassVar[str] = NoisyLabels.paper

    momentum: Ramp = setting(
        _ALPHA,
        "momentum of the targets (alpha); 0.5:0.8 grows",
        option="--target-momentum",
        aliases=("--momentum",),
        parse=Ramp.parse,
    )
    seed: int = 0  # of the first targets

    def suited(self, task: Task) -> Self:
        return replace(super().suited(task), seed=task.seed)

    def initial_targets(self, labels_N: Tensor, num_classes: int, storage: Storage) -> TargetStore | None:
        return TargetStore.gaussian(len(labels_N), self.dimensions, self.momentum.start, self.seed, storage)

    def losses(
        self, encoders: Encoders, batch: Batch, said: Sequence[View], targets: TargetStore | None, progress: Progress
    ) -> Tensor:
        assert targets is not None
        z_BD = torch.stack(
            [
                normalize(encoders.momentum_encoded(image, view), dim=1)
                for image, view in zip(batch.views, said, strict=True)
            ]
        ).mean(0)
        rows_BD = targets.move(batch.index, z_BD, momentum=self.momentum.at(progress.fraction))
        return torch.stack([normalised_squared_distance(view.predicted_BD, rows_BD) for view in said]).mean(0)


@dataclass(frozen=True, kw_only=True)
class FixedNoise(Pretraining):
    """Targets that stay the noise that they start as (Figure 2)."""

    description: ClassVar[str] = "fitting fixed noise"
    paper: ClassVar[str] = NoisyLabels.paper

    predictor: bool = setting(False, "a predictor after the projector")
    beta: Ramp = NO_MOMENTUM_ENCODER
    seed: int = 0

    def suited(self, task: Task) -> Self:
        return replace(super().suited(task), seed=task.seed)

    def initial_targets(self, labels_N: Tensor, num_classes: int, storage: Storage) -> TargetStore | None:
        return TargetStore.gaussian(len(labels_N), self.dimensions, 1.0, self.seed, storage)

    def losses(
        self, encoders: Encoders, batch: Batch, said: Sequence[View], targets: TargetStore | None, progress: Progress
    ) -> Tensor:
        assert targets is not None
        rows_BD = targets.read(batch.index)
        return torch.stack([normalised_squared_distance(view.predicted_BD, rows_BD) for view in said]).mean(0)


@dataclass(frozen=True, kw_only=True)
class RandomNetwork(Pretraining):
    """Targets that another network gives, which stays as it was drawn (Figure 2)."""

    description: ClassVar[str] = "fitting a random network"
    paper: ClassVar[str] = NoisyLabels.paper

    predictor: bool = setting(False, "a predictor after the projector")
    beta: Ramp = _FROZEN

    def build(self, backbone: Backbone, num_classes: int) -> nn.Module:
        encoders = super().build(backbone, num_classes)
        assert isinstance(encoders, Encoders)
        assert encoders.momentum_encoder is not None
        draw_anew(encoders.momentum_encoder.modules())
        return encoders

    def losses(
        self, encoders: Encoders, batch: Batch, said: Sequence[View], targets: TargetStore | None, progress: Progress
    ) -> Tensor:
        assert encoders.momentum_encoder is not None
        encoders.momentum_encoder.eval()  # frozen, batch normalisation too
        pairs = zip(batch.views, said, strict=True)
        return torch.stack(
            [
                normalised_squared_distance(view.predicted_BD, encoders.momentum_encoded(image, view))
                for image, view in pairs
            ]
        ).mean(0)
