"""Deep Gamblers: selective classification with a loss from portfolio theory.

The network has one output more than there are classes, the share of a gambler's money that is not bet. A correct bet
pays o times its stake; money that is not bet is kept:

    L = - 1/B sum_i log( p_i[y_i] + p_i[abstain] / o ),    p_i = softmax over all c + 1 outputs

with 1 < o <= c. Confidence is -log p[abstain]. The best o depends on the data; with a small o the network never bets.
The authors select it on held-out samples, as does this method: unless o is given, four values are tried on nine tenths
of the training samples, and the one with the smallest area under the risk-coverage curve on the last tenth is used. The
validation samples are not used, because a risk guarantee may need them.

As in the authors' code, on CIFAR10 with o below 6.1 the first third of the epochs (100 of 300) uses cross entropy over
the c class outputs; elsewhere only on request.

Paper: Liu et al., "Deep Gamblers: Learning to Abstain with Portfolio Theory", 2019.
When to use it: as a baseline for abstention, with time for five training runs or a known o.

Shapes: B samples of a batch, N samples, O = c + 1 outputs.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from selfadapt.core.errors import UserError
from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.objectives.erm import ERM, label_loss
from selfadapt.objectives.method import Bench, Task, Trained
from selfadapt.objectives.objective import Loss, Progress, mean_of
from selfadapt.objectives.selective import abstain_confidence

_REWARDS = (1.3, 1.6, 2.0, 2.2, 3.0, 4.5, 6.0)
_NUM_TRIED = 4  # the largest that the number of classes allows
_HELD_OUT = 0.1  # share of the training samples on which the reward is selected
_WARM_UP_BELOW = 6.1  # rewards


def gamblers_losses(logits_BO: Tensor, labels_B: Tensor, reward: float) -> Tensor:
    log_p_BO = logits_BO.float().log_softmax(1)
    log_p_label_B = log_p_BO.gather(1, labels_B.unsqueeze(1)).squeeze(1)
    return -torch.logaddexp(log_p_label_B, log_p_BO[:, -1] - math.log(reward))


def rewards_to_try(num_classes: int) -> tuple[float, ...]:
    return tuple(reward for reward in _REWARDS if reward <= num_classes)[-_NUM_TRIED:]


@dataclass(frozen=True, kw_only=True)
class DeepGamblers(ERM):
    description = "Deep Gamblers"
    abstains = True
    extra_outputs = 1
    paper = "Liu et al., Deep Gamblers: Learning to Abstain with Portfolio Theory, 2019"
    needs = "time for five training runs, unless the reward is given"

    reward: float | None = setting(
        None,
        "payoff of a correct answer (o), at most the number of classes",
        above=1,
        unset="selected on a tenth of the training samples",
    )
    cross_entropy_epochs: int | None = setting(
        None,
        "epochs of warm-up with cross entropy on the classes",
        least=0,
        unset="a third of the epochs on CIFAR10 with a reward below 6.1, else none",
    )
    num_classes: int = 0
    on_cifar10: bool = False

    def suited(self, task: Task) -> Self:
        if self.reward is not None and self.reward > task.num_classes:
            raise UserError(f"--reward {self.reward} must be at most the number of classes, {task.num_classes}")
        task.check_phase("--cross-entropy-epochs", self.cross_entropy_epochs or 0)
        return replace(self, num_classes=task.num_classes, on_cifar10=task.data == "cifar10")

    def train(self, bench: Bench) -> Trained:
        if self.reward is not None:
            return bench.fit("main", self)
        reward = self._select_reward(bench.holding_out(_HELD_OUT))
        bench.note(reward=reward)
        return bench.fit("main", replace(self, reward=reward))

    def _select_reward(self, bench: Bench) -> float:
        def area_under_risk(reward: float) -> float:
            candidate = replace(self, reward=reward)
            return bench.area_under_risk(bench.fit(f"reward-{reward}", candidate), candidate)

        return min(rewards_to_try(self.num_classes), key=area_under_risk)

    def loss_of(self, logits_BK: Tensor, batch: Batch, progress: Progress) -> Loss:
        classes_BK = logits_BK[:, :-1]
        reward = math.inf if self.reward is None else self.reward  # None: abstaining pays nothing
        warm_up = self.cross_entropy_epochs
        if warm_up is None:
            warm_up = progress.epochs // 3 if self.on_cifar10 and reward < _WARM_UP_BELOW else 0
        if progress.epoch < warm_up:
            return label_loss(classes_BK, batch.label)
        return mean_of(gamblers_losses(logits_BK, batch.label, reward), classes_BK)

    def selectors(self, outputs_NO: Tensor, num_classes: int) -> Mapping[str, Tensor]:
        return abstain_confidence(outputs_NO)
