"""Label smoothing: spread a share of each label over all classes.

    q_i = (1 - eps) one_hot(y_i) + eps / K,    L = -1/B  sum_i sum_k q_ik log p_ik

Paper: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2016, Section 7.
When to use it: as a regulariser for clean labels or little noise.

Shapes: B samples of a batch, K classes.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import cross_entropy

from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.objective import Loss, Progress, mean_of


@dataclass(frozen=True, kw_only=True)
class LabelSmoothing(ERM):
    description = "label smoothing"
    paper = "Szegedy et al., Rethinking the Inception Architecture for Computer Vision, 2016"

    smoothing: float = setting(0.1, "share of a label spread over all classes (eps)", least=0, most=1)

    def loss_of(self, logits_BK: Tensor, batch: Batch, progress: Progress) -> Loss:
        losses_B = cross_entropy(logits_BK, batch.label, reduction="none", label_smoothing=self.smoothing)
        return mean_of(losses_B, logits_BK)
