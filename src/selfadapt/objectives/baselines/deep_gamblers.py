"""Deep Gamblers (Liu et al., "Deep Gamblers: Learning to Abstain with Portfolio Theory", 2019).

The network has an output more than there are classes, the part of a gambler's money that is not bet. A right bet pays
o times its stake, what is kept pays 1:

    L = - 1/B sum_i log( p_i[y_i] + p_i[abstain] / o ),    p_i = softmax over all c + 1 outputs

with 1 < o <= c; o = 2.2 for CIFAR10. As in the authors' program the first third of the epochs (100 of 300) trains with
cross entropy over the c class outputs, without which a small o ends in a network that never bets. Confidence is
-log p[abstain].

Shapes: B samples of a batch, O = c + 1 outputs.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from selfadapt.data.loader import Batch
from selfadapt.errors import UserError
from selfadapt.models.heads import Backbone, Classifier
from selfadapt.objectives.erm import ERM, label_loss
from selfadapt.objectives.method import Task
from selfadapt.objectives.objective import Loss, Progress, mean_of
from selfadapt.objectives.selective import abstaining
from selfadapt.setting import setting


def gamblers_losses(logits_BO: Tensor, labels_B: Tensor, reward: float) -> Tensor:
    log_p_BO = logits_BO.float().log_softmax(1)
    log_p_label_B = log_p_BO.gather(1, labels_B.unsqueeze(1)).squeeze(1)
    return -torch.logaddexp(log_p_label_B, log_p_BO[:, -1] - math.log(reward))


@dataclass(frozen=True, kw_only=True)
class DeepGamblers(ERM):
    words: ClassVar[str] = "Deep Gamblers"
    abstains: ClassVar[bool] = True
    paper: ClassVar[str] = "Liu et al., Deep Gamblers: Learning to Abstain with Portfolio Theory, 2019"

    reward: float = setting(2.2, "what a right answer pays (o), at most the number of classes", above=1)
    warmup: float = 1 / 3  # of the epochs

    def suited(self, task: Task) -> Self:
        if self.reward > task.num_classes:
            raise UserError(f"--reward {self.reward} must be at most the number of classes, {task.num_classes}")
        return self

    def build(self, backbone: Backbone, num_classes: int) -> nn.Module:
        return Classifier(backbone, num_classes + 1)

    def loss_of(self, logits_BK: Tensor, batch: Batch, progress: Progress) -> Loss:
        classes_BK = logits_BK[:, :-1]
        if progress.epoch < int(self.warmup * progress.epochs):
            return label_loss(classes_BK, batch.label)
        return mean_of(gamblers_losses(logits_BK, batch.label, self.reward), classes_BK)

    def selectors(self, outputs_NO: Tensor, num_classes: int) -> Mapping[str, Tensor]:
        return abstaining(outputs_NO)
