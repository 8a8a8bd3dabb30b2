"""SimSiam: BYOL without the momentum encoder.

    L = 1/B sum_i ( D(p1_i, z2_i) + D(p2_i, z1_i) ) / 2,    D(p, z) = - cos(p, stop-gradient(z))

z is the projection of the encoder itself.

Deviation: the heads are those of the other methods here; the authors' projector has three layers, and their predictor a
bottleneck.

Paper: Chen and He, "Exploring Simple Siamese Representation Learning", 2021.
When to use it: where memory for a momentum encoder is scarce.

Shapes: B samples of a batch, D dimensions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from selfadapt.data.batch import Batch
from selfadapt.objectives.pretraining.encoders import NO_MOMENTUM_ENCODER, EncodedView, Encoders, Pretraining, Ramp


@dataclass(frozen=True, kw_only=True)
class SimSiam(Pretraining):
    description = "SimSiam"
    paper = "Chen and He, Exploring Simple Siamese Representation Learning, 2021"
    views = 2

    beta: Ramp = NO_MOMENTUM_ENCODER

    def losses(self, encoders: Encoders, batch: Batch, views: Sequence[EncodedView]) -> Tensor:
        pairs = zip(views, reversed(views), strict=True)
        return -torch.stack(
            [cosine_similarity(view.predicted_BD, other.projected_BD.detach(), dim=1) for view, other in pairs]
        ).mean(0)
