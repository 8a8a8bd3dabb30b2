"""Bootstrapping: mix the label with the network's own prediction.

    soft:  L = - sum_k (b t_k + (1 - b) p_k) log p_k,    b = 0.95
    hard:  L = - sum_k (b t_k + (1 - b) z_k) log p_k,    b = 0.8,    z = one_hot(argmax p)

t is the one-hot label. As published, the gradient of the soft loss also flows through the p beside the label: the
second term is the entropy of the prediction.

Paper: Reed et al., "Training Deep Neural Networks on Noisy Labels with Bootstrapping", 2015.
When to use it: as the simplest baseline that does not keep state between epochs.

Shapes: B samples of a batch, K classes.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import nll_loss

from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.objective import Loss, Progress, mean_of


@dataclass(frozen=True, kw_only=True)
class SoftBootstrapping(ERM):
    description = "bootstrapping, soft"
    paper = "Reed et al., Training Deep Neural Networks on Noisy Labels with Bootstrapping, 2015"

    trust: float = setting(0.95, "weight of the label relative to the prediction (b)", least=0, most=1)

    def prediction_losses(self, log_p_BK: Tensor) -> Tensor:
        """Return the cross entropy with the prediction itself, which is its entropy."""
        return -(log_p_BK.exp() * log_p_BK).sum(1)

    def loss_of(self, logits_BK: Tensor, batch: Batch, progress: Progress) -> Loss:
        log_p_BK = logits_BK.log_softmax(1)
        prediction_losses_B = self.prediction_losses(log_p_BK)
        label_losses_B = nll_loss(log_p_BK, batch.label, reduction="none")
        return mean_of(self.trust * label_losses_B + (1 - self.trust) * prediction_losses_B, logits_BK)


@dataclass(frozen=True, kw_only=True)
class HardBootstrapping(SoftBootstrapping):
    description = "bootstrapping, hard"

    trust: float = setting(0.8, "weight of the label relative to the prediction (b)", least=0, most=1)

    def prediction_losses(self, log_p_BK: Tensor) -> Tensor:
        """Return the cross entropy with the most likely class."""
        return -log_p_BK.amax(1)
