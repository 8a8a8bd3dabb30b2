"""Mean absolute error (MAE) between prediction and one-hot label.

    L = 1/B  sum_i sum_k |p_ik - one_hot(y_i)_k|  =  1/B  sum_i  2 (1 - p_i[y_i])

Its sum over all labels is the same for every prediction, so symmetric noise does not move its minimum. Its gradient
vanishes where the label has a low probability, so it learns slowly.

Paper: Ghosh et al., "Robust Loss Functions under Label Noise for Deep Neural Networks", 2017.
When to use it: as the provably robust loss that others are compared with; it underfits with many classes.

Shapes: B samples of a batch, K classes.
"""

from dataclasses import dataclass

from torch import Tensor

from selfadapt.data.batch import Batch
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.objective import Loss, Progress, mean_of


def absolute_errors(logits_BK: Tensor, labels_B: Tensor) -> Tensor:
    return 2 * (1 - logits_BK.softmax(1).gather(1, labels_B.unsqueeze(1)).squeeze(1))


@dataclass(frozen=True, kw_only=True)
class MeanAbsoluteError(ERM):
    description = "mean absolute error"
    paper = "Ghosh et al., Robust Loss Functions under Label Noise for Deep Neural Networks, 2017"

    def loss_of(self, logits_BK: Tensor, batch: Batch, progress: Progress) -> Loss:
        return mean_of(absolute_errors(logits_BK, batch.label), logits_BK)
