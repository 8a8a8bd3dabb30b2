"""Deep Gamblers (Liu et al., "Deep Gamblers: Learning to Abstain with Portfolio Theory", 2019).

The network has an output more than there are classes, the part of a gambler's money that is not bet. A right bet pays
o times its stake, what is kept pays 1:

    L = - 1/B sum_i log( p_i[y_i] + p_i[abstain] / o ),    p_i = softmax over all c + 1 outputs

with 1 < o <= c. Confidence is -log p[abstain]. What o does best is a question of the data: one that is too small ends
in a network that never bets. The authors try several and choose on held-out samples, and so does this method: unless o
is given, four are tried on nine tenths of the training samples, and the one is taken whose area under the risk-coverage
curve is least on the last tenth. Validation samples stay untouched, for a risk guarantee may need them.

As in the authors' program, on CIFAR10 and with o below 6.1 the first third of the epochs (100 of 300) trains with cross
entropy over the c class outputs; nowhere else, unless it is asked for.

Shapes: B samples of a batch, O = c + 1 outputs.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from selfadapt.core.errors import UserError
from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.models.heads import Backbone, Classifier
from selfadapt.objectives.erm import ERM, label_loss
from selfadapt.objectives.method import Bench, Task, Trained
from selfadapt.objectives.objective import Loss, Progress, mean_of
from selfadapt.objectives.selective import abstaining

_REWARDS = (1.3, 1.6, 2.0, 2.2, 3.0, 4.5, 6.0)
_TRIED = 4  # the largest of them that the number of classes allows
_HELD_OUT = 0.1  # of the training samples, to choose by
_WARM_UP_BELOW = 6.1  # rewards


def gamblers_losses(logits_BO: Tensor, labels_B: Tensor, reward: float) -> Tensor:
    log_p_BO = logits_BO.float().log_softmax(1)
    log_p_label_B = log_p_BO.gather(1, labels_B.unsqueeze(1)).squeeze(1)
    return -torch.logaddexp(log_p_label_B, log_p_BO[:, -1] - math.log(reward))


def rewards_to_try(num_classes: int) -> tuple[float, ...]:
    return tuple(reward for reward in _REWARDS if reward <= num_classes)[-_TRIED:]


@dataclass(frozen=True, kw_only=True)
class DeepGamblers(ERM):
    description: ClassVar[str] = "Deep Gamblers"
    abstains: ClassVar[bool] = True
    paper: ClassVar[str] = "Liu et al., Deep Gamblers: Learning to Abstain with Portfolio Theory, 2019"

    needs: ClassVar[str] = "time for five trainings, unless the reward is given"

    reward: float | None = setting(
        None,
        "what a right answer pays (o), at most the number of classes",
        above=1,
        unset="chosen on a tenth of the training samples",
    )
    cross_entropy_epochs: int | None = setting(
        None,
        "epochs with cross entropy on the classes before the gambling",
        least=0,
        unset="a third of the epochs on CIFAR10 with a reward below 6.1, else none",
    )
    num_classes: int = 0
    on_cifar10: bool = False

    def suited(self, task: Task) -> Self:
        if self.reward is not None and self.reward > task.num_classes:
            raise UserError(f"--reward {self.reward} must be at most the number of classes, {task.num_classes}")
        if (self.cross_entropy_epochs or 0) >= task.epochs:
            raise UserError(
                f"--cross-entropy-epochs {self.cross_entropy_epochs} is not before the end, epoch {task.epochs}: it "
                "would never gamble"
            )
        return replace(self, num_classes=task.num_classes, on_cifar10=task.data == "cifar10")

    def train(self, bench: Bench) -> Trained:
        if self.reward is not None:
            return bench.fit("main", self)
        reward = self._chosen(bench.holding_out(_HELD_OUT))
        bench.note(reward=reward)
        return bench.fit("main", replace(self, reward=reward))

    def _chosen(self, part: Bench) -> float:
        def risk(reward: float) -> float:
            own = replace(self, reward=reward)
            return part.area_under_risk(part.fit(f"reward-{reward}", own), own)

        return min(rewards_to_try(self.num_classes), key=risk)

    def _warm_up(self, epochs: int) -> int:
        if self.cross_entropy_epochs is not None:
            return self.cross_entropy_epochs
        assert self.reward is not None
        return epochs // 3 if self.on_cifar10 and self.reward < _WARM_UP_BELOW else 0

    def build(self, backbone: Backbone, num_classes: int) -> nn.Module:
        return Classifier(backbone, num_classes + 1)

    def loss_of(self, logits_BK: Tensor, batch: Batch, progress: Progress) -> Loss:
        classes_BK = logits_BK[:, :-1]
        assert self.reward is not None
        if progress.epoch < self._warm_up(progress.epochs):
            return label_loss(classes_BK, batch.label)
        return mean_of(gamblers_losses(logits_BK, batch.label, self.reward), classes_BK)

    def selectors(self, outputs_NO: Tensor, num_classes: int) -> Mapping[str, Tensor]:
        return abstaining(outputs_NO)
