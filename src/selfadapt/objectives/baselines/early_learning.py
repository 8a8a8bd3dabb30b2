"""Early-learning regularisation (ELR): keep predictions close to their running mean from early training.

    t_i <- b t_i + (1 - b) p_i,    t_i = 0 before training
    L   = 1/B  sum_i  -log p_i[y_i] + l log(1 - <p_i, t_i>)

Published for CIFAR10: b = 0.7, l = 3 with symmetric noise, b = 0.9, l = 1 with asymmetric noise; for CIFAR100: b = 0.9,
l = 7. No gradient flows through t. As in the authors' code, p is clamped to 1e-4 .. 1 - 1e-4, and normalised again
before it enters t.

Paper: Liu et al., "Early-Learning Regularization Prevents Memorization of Noisy Labels", 2020, Equations 6 and 9.
When to use it: as the closest relative of self-adaptive training, where b and l can be tuned.

Shapes: B samples of a batch, K classes, N samples in total.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import cross_entropy

from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.moving_targets import target_momentum
from selfadapt.objectives.objective import Evidence, Loss, Progress, mean_of
from selfadapt.targets.store import Storage, TargetStore

_MIN_PROBABILITY = 1e-4


@dataclass(frozen=True, kw_only=True)
class EarlyLearning(ERM):
    description = "early-learning regularisation"
    paper = "Liu et al., Early-Learning Regularization Prevents Memorization of Noisy Labels, 2020"

    momentum: float = target_momentum(0.7, "momentum of the targets (b); 0.9 for asymmetric noise and for CIFAR100")
    strength: float = setting(3.0, "weight of the regularisation (l); 1 for asymmetric noise, 7 for CIFAR100", least=0)

    def initial_targets(self, labels_N: Tensor, num_classes: int, storage: Storage) -> TargetStore | None:
        return TargetStore.empty(len(labels_N), num_classes, self.momentum, storage)

    def loss_with_targets(self, logits_BK: Tensor, batch: Batch, targets: TargetStore, progress: Progress) -> Loss:
        p_BK = logits_BK.softmax(1).clamp(_MIN_PROBABILITY, 1 - _MIN_PROBABILITY)
        detached_BK = p_BK.detach()
        rows_BK = targets.move(batch.index, detached_BK / detached_BK.sum(1, keepdim=True))
        regularisation_B = (1 - (p_BK * rows_BK).sum(1)).clamp_min(_MIN_PROBABILITY).log()
        losses_B = cross_entropy(logits_BK, batch.label, reduction="none") + self.strength * regularisation_B
        return mean_of(losses_B, logits_BK)

    def evidence(self, progress: Progress) -> Evidence | None:
        return Evidence()
