"""BYOL (Grill et al., "Bootstrap Your Own Latent", 2020): predict what a momentum encoder says of the other view.

    L = 1/B sum_i | p_i/|p_i| - z'_i/|z'_i| |^2 + the same with the views exchanged

z' is the momentum encoder's projection of the *other* view, without gradient. With one view there is no other: z' is
of the same one (the paper's Table 6), and there is one direction.

Shapes: B samples of a batch, D dimensions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from selfadapt.data.batch import Batch
from selfadapt.objectives.objective import Progress
from selfadapt.objectives.pretraining.encoders import Encoders, Pretraining, View, normalised_squared_distance
from selfadapt.targets.store import TargetStore


@dataclass(frozen=True, kw_only=True)
class BYOL(Pretraining):
    description: ClassVar[str] = "BYOL"
    paper: ClassVar[str] = "Grill et al., Bootstrap Your Own Latent, 2020"
    views: ClassVar[int] = 2

    def losses(
        self, encoders: Encoders, batch: Batch, said: Sequence[View], targets: TargetStore | None, progress: Progress
    ) -> Tensor:
        keys = [encoders.momentum_encoded(image, view) for image, view in zip(batch.views, said, strict=True)]
        pairs = zip(said, reversed(keys), strict=True)
        return torch.stack([normalised_squared_distance(view.predicted_BD, z_BD) for view, z_BD in pairs]).sum(0)
