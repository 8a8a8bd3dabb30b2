"""Symmetric cross entropy (SCE): cross entropy plus reverse cross entropy.

    L = - a sum_k t_k log p_k  -  b sum_k p_k log t_k,    t = one_hot(y),    log 0 := A

Published: a = 0.1, b = 1 for CIFAR10, a = 6, b = 0.1 for CIFAR100. The second term equals -A (1 - p_y).

Deviation: the paper has A = -4; the authors' code clamps t at 1e-4 instead, so that A = log 1e-4 = -9.21, which works
better and is the default.

Paper: Wang et al., "Symmetric Cross Entropy for Robust Learning with Noisy Labels", 2019.
When to use it: as a robust loss without state, where a and b can be tuned.

Shapes: B samples of a batch, K classes.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import cross_entropy

from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.objective import Loss, Progress, mean_of

_LOG_OF_CLAMPED_ZERO = -9.2103  # log 1e-4


@dataclass(frozen=True, kw_only=True)
class SymmetricCrossEntropy(ERM):
    description = "symmetric cross entropy"
    paper = "Wang et al., Symmetric Cross Entropy for Robust Learning with Noisy Labels, 2019"

    forward_weight: float = setting(0.1, "weight of cross entropy (a); 6 for CIFAR100", least=0)
    reverse_weight: float = setting(1.0, "weight of reverse cross entropy (b); 0.1 for CIFAR100", least=0)
    log_of_zero: float = setting(_LOG_OF_CLAMPED_ZERO, "replacement for log 0 (A): log 1e-4; -4 in the paper", below=0)

    def loss_of(self, logits_BK: Tensor, batch: Batch, progress: Progress) -> Loss:
        forward_B = cross_entropy(logits_BK, batch.label, reduction="none")
        reverse_B = -self.log_of_zero * (1 - (-forward_B).exp())
        return mean_of(self.forward_weight * forward_B + self.reverse_weight * reverse_B, logits_BK)
