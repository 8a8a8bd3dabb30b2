"""Ordinary training on a selection of the samples: the others have weight zero.

    L = 1/(sum_i c_i)  sum_i  -c_i log p_i[y_i],    c_i is 1 if the sample is selected, else 0

Shapes: B samples of a batch, N samples in total, K classes.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import cross_entropy

from selfadapt.core.device import kept_on
from selfadapt.core.errors import UserError
from selfadapt.data.batch import Batch
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.objective import Loss, Progress


@dataclass(frozen=True, kw_only=True, eq=False)
class OnSelected(ERM):
    chosen_N: Tensor

    def __post_init__(self) -> None:
        if not self.chosen_N.any():
            raise UserError("the method selected no sample to train on; choose another method, or weaker settings")

    def loss_of(self, logits_BK: Tensor, batch: Batch, progress: Progress) -> Loss:
        chosen_B = kept_on(batch.label.device, self.chosen_N)[batch.index].to(logits_BK.dtype)
        losses_B = cross_entropy(logits_BK, batch.label, reduction="none")
        # The sum of the weights is zero if a batch has none of the selected samples: then its loss is zero as well.
        return Loss.of((losses_B * chosen_B).sum(), chosen_B.sum().clamp_min(1e-12), logits_BK)
