"""SimSiam (Chen and He, "Exploring Simple Siamese Representation Learning", 2021): BYOL without the momentum encoder.

    L = 1/B sum_i ( D(p1_i, z2_i) + D(p2_i, z1_i) ) / 2,    D(p, z) = - cos(p, stop-gradient(z))

z is the encoder's own projection. Heads are those of the other methods here, where the authors' projector has three
layers and their predictor a narrow middle.

Shapes: B samples of a batch, D dimensions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from selfadapt.data.batch import Batch
from selfadapt.objectives.objective import Progress
from selfadapt.objectives.pretraining.encoders import NO_MOMENTUM_ENCODER, Encoders, Pretraining, Ramp, View
from selfadapt.targets.store import TargetStore


@dataclass(frozen=True, kw_only=True)
class SimSiam(Pretraining):
    description: ClassVar[str] = "SimSiam"
    paper: ClassVar[str] = "Chen and He, Exploring Simple Siamese Representation Learning, 2021"
    views: ClassVar[int] = 2

    beta: Ramp = NO_MOMENTUM_ENCODER

    def losses(
        self, encoders: Encoders, batch: Batch, said: Sequence[View], targets: TargetStore | None, progress: Progress
    ) -> Tensor:
        pairs = zip(said, reversed(said), strict=True)
        return -torch.stack(
            [cosine_similarity(view.predicted_BD, other.projected_BD.detach(), dim=1) for view, other in pairs]
        ).mean(0)
