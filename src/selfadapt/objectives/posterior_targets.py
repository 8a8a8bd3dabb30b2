"""Self-adaptive training whose targets do not forget the label: they are the posterior given prediction and label.

    m_i <- alpha m_i + (1 - alpha) p_i                         the running mean of a sample's predictions
    t_ik ∝ m_ik V[k, y_i]                                      from epoch E_s on; before it t_i = one_hot(y_i)
    w_i = max_k t_ik
    L   = - 1 / (sum_i w_i)  sum_i w_i sum_k t_ik log p_ik

with V[k, j] = P(label j | class k). In Algorithm 2 a target forgets its label: with every epoch alpha of it is
left. That is right for a network that trains for long and memorises. In a few epochs nothing is memorised, labels are
still the best there is to learn from, and targets that forget them hold the network where it is. The posterior weighs
both by what they are worth at the time, so it can begin to move early. It is no help against memorising: a network that
has memorised a label confirms it.

V is symmetric: the label is right with probability rho, all wrong ones are equally likely. rho is measured in the epoch
before, without a clean label: of the samples of which the running mean is most confident it is hardly wrong, and so its
agreement with their labels tells (start.py). Where labels are right rho is near 1, and this is ordinary training.

Without weights, and with predictions for running means (alpha = 0), the gradient is that of forward correction by V
(Patrini et al., 2017): the posterior is the expectation step for that likelihood. Running means are what is added.

Shapes: B samples of a batch, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from selfadapt.core.errors import UserError
from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.objectives.erm import label_loss
from selfadapt.objectives.method import Task
from selfadapt.objectives.noisy_labels import NoisyLabels, check_start, target_loss
from selfadapt.objectives.objective import Evidence, Loss, Metrics, Progress
from selfadapt.objectives.start_epoch import CONFIDENCE, CONFIDENT_AGREEMENT, confident_agreement, label_accuracy
from selfadapt.targets.store import TargetStore

_FIRST_EPOCHS = 0.15  # of all
_LEAST_NOISE = 1e-4


def posterior_targets(means_BK: Tensor, labels_B: Tensor, accuracy: float) -> Tensor:
    """t ∝ m V[·, y], where a label is right with probability `accuracy` and wrong ones are equally likely.

    The label never counts against its class, and never forbids the others: a mean may be exactly zero.
    """
    classes = means_BK.shape[1]
    accuracy = min(max(accuracy, 1 / classes), 1 - _LEAST_NOISE)
    odds_BK = torch.full_like(means_BK, (1 - accuracy) / max(1, classes - 1))
    odds_BK.scatter_(1, labels_B.unsqueeze(1), accuracy)
    joint_BK = means_BK * odds_BK
    return joint_BK / joint_BK.sum(1, keepdim=True)


@dataclass(frozen=True, kw_only=True)
class PosteriorTargets(NoisyLabels):
    description: ClassVar[str] = "self-adaptive training, targets are the posterior given prediction and label"

    start_epoch: int | None = setting(  # type: ignore[assignment]
        None, "epochs before the targets move (E_s)", least=1, unset="0.15 of the epochs"
    )
    momentum: float = setting(
        0.5,
        "momentum of the running means (alpha)",
        option="--target-momentum",
        aliases=("--momentum",),
        least=0,
        most=1,
    )

    def suited(self, task: Task) -> Self:
        if task.epochs < 2:
            raise UserError("sat-posterior learns from labels in its first epoch; give --epochs 2 or more")
        start = max(1, int(_FIRST_EPOCHS * task.epochs)) if self.start_epoch is None else self.start_epoch
        check_start(start, task.epochs)
        return replace(self, start_epoch=start)

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        assert targets is not None
        logits_BK: Tensor = model(batch.input)
        p_BK = logits_BK.detach().float().softmax(1)
        means_BK = targets.move(batch.index, p_BK, rows=None if progress.history else p_BK)
        agreement_B, confidence_B = confident_agreement(means_BK, batch.label)
        loss = self._loss(logits_BK, means_BK, batch.label, progress)
        return replace(loss, measured={CONFIDENCE: confidence_B, CONFIDENT_AGREEMENT: agreement_B})

    def _loss(self, logits_BK: Tensor, means_BK: Tensor, labels_B: Tensor, progress: Progress) -> Loss:
        assert self.start_epoch is not None
        if progress.epoch < self.start_epoch:
            return label_loss(logits_BK, labels_B)
        accuracy = label_accuracy(progress.history[-1])
        return target_loss(logits_BK, posterior_targets(means_BK, labels_B, accuracy), reweight=self.reweight)

    def started(self, history: Sequence[Metrics], epochs: int) -> int | None:
        return self.start_epoch

    def evidence(self, progress: Progress) -> Evidence | None:
        return Evidence(weighed=self.reweight)  # the store holds running means, which know no label
