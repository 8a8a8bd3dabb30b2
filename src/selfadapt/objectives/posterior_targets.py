"""Self-adaptive training with posterior targets, which combine prediction and label instead of forgetting the label.

    m_i <- alpha m_i + (1 - alpha) p_i                         running mean of a sample's predictions
    t_ik ∝ m_ik V[k, y_i]                                      from epoch E_s on; before it t_i = one_hot(y_i)
    w_i = max_k t_ik
    L   = - 1 / (sum_i w_i)  sum_i w_i sum_k t_ik log p_ik

with V[k, j] = P(label j | class k). In Algorithm 2 a target forgets its label: each epoch leaves alpha of it. That is
right for long training, in which a network memorises. In a few epochs nothing is memorised, labels are still the best
source of information, and targets that forget them hold the network back. The posterior weighs both by their current
accuracy, so the targets can move early. It does not protect against memorisation: a memorised label is confirmed.

V is symmetric: the label is correct with probability rho, and all wrong labels are equally likely. rho is estimated in
the epoch before, without clean labels, from the agreement of the most confident running means with their labels
(start_epoch.py). With clean labels rho is near 1, and this is ordinary training.

Without weights, and with predictions instead of running means (alpha = 0), the gradient is that of forward correction
with V (Patrini et al., 2017): the posterior is the expectation step for that likelihood.

Shapes: B samples of a batch, K classes.
"""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from selfadapt.core.errors import UserError
from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.objectives.erm import label_loss
from selfadapt.objectives.method import Task
from selfadapt.objectives.moving_targets import MovingTargets, target_momentum
from selfadapt.objectives.objective import Evidence, Loss, Progress
from selfadapt.objectives.self_adaptive_loss import target_loss
from selfadapt.objectives.start_epoch import CONFIDENCE, CONFIDENT_AGREEMENT, confident_agreement, label_accuracy
from selfadapt.targets.store import TargetStore

_MIN_NOISE = 1e-4


def posterior_targets(means_BK: Tensor, labels_B: Tensor, accuracy: float) -> Tensor:
    """Return t ∝ m V[·, y] for labels that are correct with probability `accuracy`.

    The accuracy is clamped, so that a label is never evidence against its class and never excludes the others: a mean
    may be exactly zero.
    """
    classes = means_BK.shape[1]
    accuracy = min(max(accuracy, 1 / classes), 1 - _MIN_NOISE)
    likelihood_BK = torch.full_like(means_BK, (1 - accuracy) / max(1, classes - 1))
    likelihood_BK.scatter_(1, labels_B.unsqueeze(1), accuracy)
    joint_BK = means_BK * likelihood_BK
    return joint_BK / joint_BK.sum(1, keepdim=True)


@dataclass(frozen=True, kw_only=True)
class PosteriorTargets(MovingTargets):
    description = "self-adaptive training, targets are the posterior given prediction and label"
    default_start = 0.15

    start_epoch: int | None = setting(None, "epochs before the targets move (E_s)", least=1, unset="0.15 of the epochs")
    momentum: float = target_momentum(0.5, "momentum of the running means (alpha)")

    def suited(self, task: Task) -> Self:
        if task.epochs < 2:
            raise UserError("sat-posterior learns from labels in its first epoch; give --epochs 2 or more")
        return super().suited(task)

    def _fixed_start(self, epochs: int) -> int:
        return max(1, super()._fixed_start(epochs))

    def loss_with_targets(self, logits_BK: Tensor, batch: Batch, targets: TargetStore, progress: Progress) -> Loss:
        p_BK = logits_BK.detach().softmax(1)
        means_BK = targets.move(batch.index, p_BK, rows=None if progress.history else p_BK)
        if progress.epoch < self._fixed_start(progress.epochs):
            loss = label_loss(logits_BK, batch.label)
        else:
            rows_BK = posterior_targets(means_BK, batch.label, label_accuracy(progress.history[-1]))
            loss = target_loss(logits_BK, rows_BK, reweight=self.reweight)
        agreement_B, confidence_B = confident_agreement(means_BK, batch.label)
        return replace(loss, measured={CONFIDENCE: confidence_B, CONFIDENT_AGREEMENT: agreement_B})

    def evidence(self, progress: Progress) -> Evidence | None:
        return Evidence(reweighted=self.reweight)  # the store holds running means of predictions, without the label
