"""Symmetric cross entropy (Wang et al., "Symmetric Cross Entropy for Robust Learning with Noisy Labels", 2019).

    L = - a sum_k t_k log p_k  -  b sum_k p_k log t_k,    t = one_hot(y),    log 0 := A

Published for CIFAR10: a = 0.1, b = 1, A = -4; the authors' program clips t at 1e-4 instead, which is A = -9.2. For a
label the second term is -A (1 - p_y).

Shapes: B samples of a batch, K classes.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import cross_entropy

from selfadapt.data.loader import Batch
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.objective import Loss, Progress, mean_of


@dataclass(frozen=True, kw_only=True)
class SymmetricCrossEntropy(ERM):
    forward_weight: float = 0.1  # a
    reverse_weight: float = 1.0  # b
    log_of_zero: float = -4.0  # A

    def loss_of(self, logits_BK: Tensor, batch: Batch, progress: Progress) -> Loss:
        forward_B = cross_entropy(logits_BK, batch.label, reduction="none")
        reverse_B = -self.log_of_zero * (1 - (-forward_B).exp())
        return mean_of(self.forward_weight * forward_B + self.reverse_weight * reverse_B, logits_BK)
