"""Empirical risk minimisation: training with cross entropy on the given labels.

    L = -1/B  sum_i  log p_i[y_i],    p_i = softmax(f(x_i))

Shapes: B samples of a batch, K classes, N samples in total, O outputs of the network.
"""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from selfadapt.core.settings import check_settings
from selfadapt.data.batch import Batch
from selfadapt.objectives.method import Method
from selfadapt.objectives.objective import Loss, Progress
from selfadapt.targets.store import TargetStore


def label_loss(logits_BK: Tensor, labels_B: Tensor) -> Loss:
    """Return the cross entropy with the labels, every sample with weight one."""
    logits_BK = logits_BK.float()
    return Loss.of(cross_entropy(logits_BK, labels_B, reduction="sum"), len(labels_B), logits_BK)


@dataclass(frozen=True, kw_only=True)
class ERM(Method):
    """Empirical risk minimisation, and the base class of the other methods.

    A method with another loss overrides `loss_of`, or `loss_with_targets` if it has targets. One that needs several
    forward passes overrides `loss`.
    """

    description = "ordinary training"
    paper = "Vapnik, Principles of Risk Minimization for Learning Theory, 1991"

    def __post_init__(self) -> None:
        check_settings(self)

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        logits_BK = model(batch.input).float()
        if targets is None:
            return self.loss_of(logits_BK, batch, progress)
        return self.loss_with_targets(logits_BK, batch, targets, progress)

    def loss_of(self, logits_BK: Tensor, batch: Batch, progress: Progress) -> Loss:
        """Return the loss of a method without targets."""
        return label_loss(logits_BK, batch.label)

    def loss_with_targets(self, logits_BK: Tensor, batch: Batch, targets: TargetStore, progress: Progress) -> Loss:
        """Update the targets and return the loss."""
        return self.loss_of(logits_BK, batch, progress)
