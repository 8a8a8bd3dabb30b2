"""Self-adaptive training for selective classification (Section 5): a network that may abstain.

The network has one output more than there are classes, for abstention.

    t_i = one_hot(y_i)                                              before training
    q_i = softmax over the c class outputs only
    t_i <- alpha t_i + (1 - alpha) q_i                              from epoch E_s on (epochs count from 0)
    L   = - 1/B sum_i [ t_i[y_i] log p_i[y_i] + (1 - t_i[y_i]) log p_i[abstain] ],   p_i = softmax over c + 1 outputs

A sample whose target moves away from its label teaches the network to abstain. Samples are not re-weighted. The paper
has E_s = 0 and alpha = 0.99; a larger E_s is a warm-up with cross entropy over the c class outputs, a common variant.
Where t_i[y_i] = 1 the loss is cross entropy over c + 1 outputs.

Shapes: B samples of a batch, K classes, N samples in total, O = K + 1 outputs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.objectives.erm import label_loss
from selfadapt.objectives.moving_targets import MovingTargets, target_momentum
from selfadapt.objectives.objective import Loss, Progress, mean_of
from selfadapt.targets.store import TargetStore


def selective_cross_entropy(logits: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
    """Compute the loss of self-adaptive training with abstention.

    Args:
        logits: Outputs of the network (B×(K+1)), the last for abstention.
        targets: Targets from `TargetStore.update` (B×K).
        labels: Given labels (B).

    Returns:
        The mean over the batch.

    Raises:
        ValueError: If there is not exactly one output more than classes.

    Examples:
        >>> rows = targets.update(index, logits[:, :-1].softmax(1))
        >>> loss = selective_cross_entropy(logits, rows, labels)
    """
    if logits.shape[1] != targets.shape[1] + 1:
        raise ValueError(
            f"logits are {tuple(logits.shape)} and targets {tuple(targets.shape)}; abstention needs one output more "
            "than there are classes"
        )
    return selective_losses(logits, targets, labels).mean()


def selective_losses(logits_BO: Tensor, targets_BK: Tensor, labels_B: Tensor) -> Tensor:
    log_p_BO = logits_BO.float().log_softmax(1)
    target_B = targets_BK.detach().gather(1, labels_B.unsqueeze(1)).squeeze(1)
    log_p_label_B = log_p_BO.gather(1, labels_B.unsqueeze(1)).squeeze(1)
    return -(target_B * log_p_label_B + (1 - target_B) * log_p_BO[:, -1])


def abstain_confidence(outputs_NO: Tensor) -> Mapping[str, Tensor]:
    """Return the confidence of a network whose last output is for abstention: -log p[abstain].

    It ranks like 1 - p[abstain], but still distinguishes samples on which the network is almost certain.
    """
    return {"abstain": -outputs_NO.double().log_softmax(1)[:, -1]}


@dataclass(frozen=True, kw_only=True)
class Selective(MovingTargets):
    description = "self-adaptive training with abstention"
    abstains = True
    extra_outputs = 1

    start_epoch: int = setting(0, "epochs before the targets move (E_s), a warm-up with cross entropy", least=0)
    momentum: float = target_momentum(0.99)
    reweight: bool = False

    def loss_with_targets(self, logits_BK: Tensor, batch: Batch, targets: TargetStore, progress: Progress) -> Loss:
        classes_BK = logits_BK[:, :-1]
        if progress.epoch < self.start_epoch:
            return label_loss(classes_BK, batch.label)
        rows_BK = targets.move(batch.index, classes_BK.detach().softmax(1))
        return mean_of(selective_losses(logits_BK, rows_BK, batch.label), classes_BK)

    def selectors(self, outputs_NO: Tensor, num_classes: int) -> Mapping[str, Tensor]:
        return abstain_confidence(outputs_NO)
