"""SimCLR: contrast the two views of an image with all other views of the batch (NT-Xent).

    l_a = - log  exp(cos(a, a+)/tau) / sum over b != a of exp(cos(a, b)/tau),    tau = 0.5

a+ is the other view of the same image. Two views are required.

Deviation: with several processes, each contrasts only its own part of the batch.

Paper: Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations", 2020.
When to use it: with large batches, which provide the negatives.

Shapes: B samples of a batch, X = 2B views, D dimensions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from selfadapt.core.errors import UserError
from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.objectives.method import Task
from selfadapt.objectives.pretraining.encoders import NO_MOMENTUM_ENCODER, EncodedView, Encoders, Pretraining, Ramp


def contrastive_losses(first_BD: Tensor, second_BD: Tensor, temperature: float) -> Tensor:
    """Return NT-Xent of each sample: the mean over its two views."""
    size = len(first_BD)
    all_XD = normalize(torch.cat([first_BD, second_BD]), dim=1)
    similarity_XX = (all_XD @ all_XD.T / temperature).fill_diagonal_(-torch.inf)
    partner_X = torch.arange(2 * size, device=all_XD.device).roll(size)
    return cross_entropy(similarity_XX, partner_X, reduction="none").view(2, size).mean(0)


@dataclass(frozen=True, kw_only=True)
class SimCLR(Pretraining):
    description = "SimCLR"
    paper = "Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, 2020"
    needs = "two views"
    views = 2

    predictor: bool = False
    beta: Ramp = NO_MOMENTUM_ENCODER
    temperature: float = setting(0.5, "temperature of the similarities (tau)", above=0)

    def suited(self, task: Task) -> Self:
        if task.views == 1:
            raise UserError("--method simclr contrasts two views of an image; leave out --views 1")
        return super().suited(task)

    def losses(self, encoders: Encoders, batch: Batch, views: Sequence[EncodedView]) -> Tensor:
        first, second = views
        return contrastive_losses(first.projected_BD, second.projected_BD, self.temperature)
