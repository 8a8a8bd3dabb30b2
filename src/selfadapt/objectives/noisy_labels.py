"""Supervised self-adaptive training (Section 3.1, Algorithm 2): labels that may be wrong.

    t_i = one_hot(y_i)                                             before training
    p_i = softmax(f(x_i))
    t_i <- alpha t_i + (1 - alpha) p_i                             from epoch E_s on (epochs count from 0)
    w_i = max_j t_ij                                               of the moved target
    L   = - 1 / (sum_i w_i)  sum_i w_i sum_j t_ij log p_ij

No gradient flows through t or w. Before E_s every target is its label and every weight is one, so the loss is
plain cross entropy, and is computed as such.

Switching the moving average off leaves t_i = one_hot(y_i) and w_i = 1: by the letter of Algorithm 2 that row of
the paper's ablation (Table 2) is ordinary training, and its published figures are at the level of it.

Shapes: B samples of a batch, K classes, N samples in all.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from selfadapt.data.loader import Batch
from selfadapt.models.heads import Backbone, Classifier
from selfadapt.objectives.erm import label_loss
from selfadapt.objectives.objective import Loss, Progress
from selfadapt.targets.store import Storage, TargetStore


def self_adaptive_cross_entropy(logits: Tensor, targets: Tensor, *, reweight: bool = True) -> Tensor:
    """Cross entropy with soft targets, each sample weighted by its target's largest entry.

    `logits` and `targets` are B×K; the result is the weighted mean over the batch. In a loop of your own:

        loss = self_adaptive_cross_entropy(logits, store.update(index, logits.softmax(1)))
    """
    if logits.shape != targets.shape:
        raise ValueError(f"logits are {tuple(logits.shape)} but targets are {tuple(targets.shape)}; both must be B×K")
    return target_loss(logits.float().log_softmax(1), targets.detach(), reweight=reweight).mean


def target_loss(log_p_BK: Tensor, targets_BK: Tensor, *, reweight: bool) -> Loss:
    """Cross entropy of log probabilities with soft targets, as sums over the batch."""
    weights_B = targets_BK.amax(1) if reweight else torch.ones_like(targets_BK[:, 0])
    total = -(weights_B.unsqueeze(1) * targets_BK * log_p_BK).sum()
    return Loss(total, weights_B.sum())


@dataclass(frozen=True, kw_only=True)
class NoisyLabels:
    """Self-adaptive training on labels that may be wrong, with the paper's defaults for 200 epochs of CIFAR."""

    start_epoch: int = 60  # E_s
    momentum: float = 0.9  # alpha
    reweight: bool = True
    moving_average: bool = True

    def build(self, backbone: Backbone, num_classes: int) -> nn.Module:
        return Classifier(backbone, num_classes)

    def initial_targets(self, labels_N: Tensor, num_classes: int, storage: Storage) -> TargetStore | None:
        return TargetStore.from_labels(labels_N, num_classes, self.momentum, storage)

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        assert targets is not None
        logits_BK: Tensor = model(batch.image)
        if progress.epoch < self.start_epoch or not self.moving_average:
            return label_loss(logits_BK, batch.label)
        log_p_BK = logits_BK.float().log_softmax(1)
        rows_BK = targets.update(batch.index, log_p_BK.detach().exp())
        loss = target_loss(log_p_BK, rows_BK, reweight=self.reweight)
        return Loss(loss.total, loss.weight, logits_BK.detach())

    def after_step(self, model: nn.Module, progress: Progress) -> None:
        pass
