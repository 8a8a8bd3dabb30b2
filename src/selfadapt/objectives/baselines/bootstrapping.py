"""Bootstrapping (Reed et al., "Training Deep Neural Networks on Noisy Labels with Bootstrapping", 2015).

    soft:  L = - sum_k (b t_k + (1 - b) p_k) log p_k,    b = 0.95
    hard:  L = - sum_k (b t_k + (1 - b) z_k) log p_k,    b = 0.8,    z = one_hot(argmax p)

t is the label. As published, the gradient of the soft loss also passes through the p beside the label: its second
term is the entropy of the prediction.

Shapes: B samples of a batch, K classes.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import nll_loss

from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.objective import Loss, Progress, mean_of


def bootstrapped(log_p_BK: Tensor, labels_B: Tensor, own_B: Tensor, trust: float) -> Tensor:
    """The loss of each sample: b parts its label's, the rest that of the network's own opinion."""
    return trust * nll_loss(log_p_BK, labels_B, reduction="none") + (1 - trust) * own_B


@dataclass(frozen=True, kw_only=True)
class SoftBootstrapping(ERM):
    description: ClassVar[str] = "bootstrapping, soft"
    paper: ClassVar[str] = "Reed et al., Training Deep Neural Networks on Noisy Labels with Bootstrapping, 2015"

    trust: float = setting(0.95, "how much the label counts against the prediction (b)", least=0, most=1)

    def loss_of(self, logits_BK: Tensor, batch: Batch, progress: Progress) -> Loss:
        log_p_BK = logits_BK.log_softmax(1)
        entropy_B = -(log_p_BK.exp() * log_p_BK).sum(1)
        return mean_of(bootstrapped(log_p_BK, batch.label, entropy_B, self.trust), logits_BK)


@dataclass(frozen=True, kw_only=True)
class HardBootstrapping(ERM):
    description: ClassVar[str] = "bootstrapping, hard"
    paper: ClassVar[str] = "Reed et al., Training Deep Neural Networks on Noisy Labels with Bootstrapping, 2015"

    trust: float = setting(0.8, "how much the label counts against the prediction (b)", least=0, most=1)

    def loss_of(self, logits_BK: Tensor, batch: Batch, progress: Progress) -> Loss:
        log_p_BK = logits_BK.log_softmax(1)
        return mean_of(bootstrapped(log_p_BK, batch.label, -log_p_BK.amax(1), self.trust), logits_BK)
