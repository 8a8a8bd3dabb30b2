"""BYOL: predict the momentum encoder's projection of the other view.

    L = 1/B sum_i | p_i/|p_i| - z'_i/|z'_i| |^2 + the same with the views exchanged

z' is the momentum encoder's projection of the *other* view, without gradient. With a single view, z' is the projection
of that view (the paper's Table 6), and the loss has one term.

Paper: Grill et al., "Bootstrap Your Own Latent", 2020.
When to use it: as the standard method without negatives, with twice the forward passes of one-view methods.

Shapes: B samples of a batch, D dimensions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from selfadapt.data.batch import Batch
from selfadapt.objectives.pretraining.encoders import EncodedView, Encoders, Pretraining, normalised_squared_distance


@dataclass(frozen=True, kw_only=True)
class BYOL(Pretraining):
    description = "BYOL"
    paper = "Grill et al., Bootstrap Your Own Latent, 2020"
    views = 2

    def losses(self, encoders: Encoders, batch: Batch, views: Sequence[EncodedView]) -> Tensor:
        keys = [encoders.momentum_encoded(image, view) for image, view in zip(batch.views, views, strict=True)]
        pairs = zip(views, reversed(keys), strict=True)
        return torch.stack([normalised_squared_distance(view.predicted_BD, z_BD) for view, z_BD in pairs]).sum(0)
