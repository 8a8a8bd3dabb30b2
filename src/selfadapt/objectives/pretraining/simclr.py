"""SimCLR (Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations", 2020).

Of the 2B projections of a batch each is to be nearer to the other view of its image than to all others (NT-Xent):

    l_a = - log  exp(cos(a, a+)/tau) / sum over b != a of exp(cos(a, b)/tau),    tau = 0.5

It needs two views. Several processes contrast each its own part of the batch.

Shapes: B samples of a batch, D dimensions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from selfadapt.core.errors import UserError
from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.objectives.method import Task
from selfadapt.objectives.objective import Progress
from selfadapt.objectives.pretraining.encoders import NO_MOMENTUM_ENCODER, Encoders, Pretraining, Ramp, View
from selfadapt.targets.store import TargetStore


def contrastive_losses(first_BD: Tensor, second_BD: Tensor, temperature: float) -> Tensor:
    """NT-Xent of each sample: the mean over its two views."""
    size = len(first_BD)
    all_XD = normalize(torch.cat([first_BD, second_BD]), dim=1)
    likeness_XX = (all_XD @ all_XD.T / temperature).fill_diagonal_(-torch.inf)
    partner_X = torch.arange(2 * size, device=all_XD.device).roll(size)
    return cross_entropy(likeness_XX, partner_X, reduction="none").view(2, size).mean(0)


@dataclass(frozen=True, kw_only=True)
class SimCLR(Pretraining):
    description: ClassVar[str] = "SimCLR"
    paper: ClassVar[str] = "Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, 2020"
    needs: ClassVar[str] = "two views"
    views: ClassVar[int] = 2

    predictor: bool = False
    beta: Ramp = NO_MOMENTUM_ENCODER
    temperature: float = setting(0.5, "of the likenesses (tau)", above=0)

    def suited(self, task: Task) -> Self:
        if task.views == 1:
            raise UserError("--method simclr contrasts two views of an image; leave --views 1 out")
        return super().suited(task)

    def losses(
        self, encoders: Encoders, batch: Batch, said: Sequence[View], targets: TargetStore | None, progress: Progress
    ) -> Tensor:
        first, second = said
        return contrastive_losses(first.projected_BD, second.projected_BD, self.temperature)
