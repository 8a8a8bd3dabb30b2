"""Self-adaptive training for selective classification (Section 5): a network that may say "I don't know".

The network has an output more than there are classes, for abstention.

    t_i = one_hot(y_i)                                              before training
    q_i = softmax over the c class outputs alone
    t_i <- alpha t_i + (1 - alpha) q_i                              from epoch E_s on (epochs count from 0)
    L   = - 1/B sum_i [ t_i[y_i] log p_i[y_i] + (1 - t_i[y_i]) log p_i[abstain] ],   p_i = softmax over c + 1 outputs

A sample whose label the network does not come to believe teaches it to abstain. Samples are not re-weighted. The paper
has E_s = 0 and alpha = 0.99; a start after that is a warm-up with cross entropy over the c class outputs, a common
variant. Where t_i[y_i] = 1 the loss is cross entropy over c + 1 outputs.

Shapes: B samples of a batch, K classes, N samples in all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor, nn

from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.models.heads import Backbone, Classifier
from selfadapt.objectives.erm import ERM, label_loss
from selfadapt.objectives.method import Task
from selfadapt.objectives.noisy_labels import NoisyLabels, check_start
from selfadapt.objectives.objective import Evidence, Loss, Metrics, Progress, mean_of
from selfadapt.targets.store import Storage, TargetStore


def selective_cross_entropy(logits: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
    """The loss for outputs B×(K+1), targets B×K and labels B: the mean over the batch. In a loop of your own:

    loss = selective_cross_entropy(logits, store.update(index, logits[:, :-1].softmax(1)), labels)
    """
    if logits.shape[1] != targets.shape[1] + 1:
        raise ValueError(
            f"logits are {tuple(logits.shape)} and targets {tuple(targets.shape)}; abstention needs one output more "
            "than there are classes"
        )
    return selective_losses(logits, targets, labels).mean()


def selective_losses(logits_BO: Tensor, targets_BK: Tensor, labels_B: Tensor) -> Tensor:
    log_p_BO = logits_BO.float().log_softmax(1)
    believed_B = targets_BK.detach().gather(1, labels_B.unsqueeze(1)).squeeze(1)
    log_p_label_B = log_p_BO.gather(1, labels_B.unsqueeze(1)).squeeze(1)
    return -(believed_B * log_p_label_B + (1 - believed_B) * log_p_BO[:, -1])


def abstaining(outputs_NO: Tensor) -> Mapping[str, Tensor]:
    """The confidence of a network whose last output is for abstention: -log p[abstain].

    It ranks as 1 - p[abstain] does, but tells samples apart that are all nearly certain.
    """
    return {"abstain": -outputs_NO.double().log_softmax(1)[:, -1]}


@dataclass(frozen=True, kw_only=True)
class Selective(ERM):
    description: ClassVar[str] = "self-adaptive training with abstention"
    paper: ClassVar[str] = NoisyLabels.paper
    abstains: ClassVar[bool] = True

    start_epoch: int = setting(0, "epochs before the targets move (E_s), a warm-up with cross entropy", least=0)
    momentum: float = setting(
        0.99, "momentum of the targets (alpha)", option="--target-momentum", aliases=("--momentum",), least=0, most=1
    )

    def suited(self, task: Task) -> Self:
        check_start(self.start_epoch, task.epochs)
        return self

    def build(self, backbone: Backbone, num_classes: int) -> nn.Module:
        return Classifier(backbone, num_classes + 1)

    def initial_targets(self, labels_N: Tensor, num_classes: int, storage: Storage) -> TargetStore | None:
        return TargetStore.from_labels(labels_N, num_classes, self.momentum, storage)

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        assert targets is not None
        logits_BO: Tensor = model(batch.input).float()
        classes_BK = logits_BO[:, :-1]
        if progress.epoch < self.start_epoch:
            return label_loss(classes_BK, batch.label)
        rows_BK = targets.move(batch.index, classes_BK.detach().softmax(1))
        return mean_of(selective_losses(logits_BO, rows_BK, batch.label), classes_BK)

    def selectors(self, outputs_NO: Tensor, num_classes: int) -> Mapping[str, Tensor]:
        return abstaining(outputs_NO)

    def started(self, history: Sequence[Metrics], epochs: int) -> int | None:
        return self.start_epoch

    def evidence(self, progress: Progress) -> Evidence | None:
        return Evidence(label_share=float(self.momentum ** max(0, progress.epoch - self.start_epoch)))
