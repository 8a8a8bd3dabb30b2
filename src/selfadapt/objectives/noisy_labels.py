"""Supervised self-adaptive training for labels that may be wrong (Section 3.1, Algorithm 2).

    t_i = one_hot(y_i)                                             before training
    p_i = softmax(f(x_i))
    t_i <- alpha t_i + (1 - alpha) p_i                             from epoch E_s on (epochs count from 0)
    w_i = max_j t_ij                                               of the updated target
    L   = - 1 / (sum_i w_i)  sum_i w_i sum_j t_ij log p_ij         self_adaptive_loss.py

Before E_s every target is its label and every weight is one, so the loss is cross entropy, and computed as such.

Without the moving average, t_i = one_hot(y_i) and w_i = 1: read literally, that row of the paper's ablation (Table 2)
is ordinary training, and its published numbers match it.

With the symmetric loss (appendix, "Cooperation with Symmetric Cross Entropy") sum_j t_ij log p_ij becomes

    w1 sum_j t_ij log p_ij + w2 sum_j p_ij log t_ij,    w1 = 1, w2 = 0.1

from epoch E_s on; before it the loss is cross entropy here too.

Shapes: B samples of a batch, K classes, N samples in total.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.objectives.erm import label_loss
from selfadapt.objectives.moving_targets import MovingTargets
from selfadapt.objectives.objective import Evidence, Loss, Metrics, Progress
from selfadapt.objectives.self_adaptive_loss import update_and_loss
from selfadapt.objectives.start_epoch import AutoStart, parse_start
from selfadapt.targets.store import Storage, TargetStore


@dataclass(frozen=True, kw_only=True)
class NoisyLabels(MovingTargets):
    """Self-adaptive training on labels that may be wrong, with the paper's defaults for 200 epochs of CIFAR."""

    start_epoch: int | AutoStart | None = 60
    moving_average: bool = True
    reverse_weight: float = 0.0  # w2 of the symmetric loss

    def initial_targets(self, labels_N: Tensor, num_classes: int, storage: Storage) -> TargetStore | None:
        return super().initial_targets(labels_N, num_classes, storage) if self.moving_average else None

    def started(self, history: Sequence[Metrics], epochs: int) -> int | None:
        return super().started(history, epochs) if self.moving_average else None

    def evidence(self, progress: Progress) -> Evidence | None:
        return super().evidence(progress) if self.moving_average else None

    def loss_with_targets(self, logits_BK: Tensor, batch: Batch, targets: TargetStore, progress: Progress) -> Loss:
        start = self.started(progress.history, progress.epochs)
        if start is None and isinstance(self.start_epoch, AutoStart):
            return self.start_epoch.probed_loss(logits_BK, batch, targets, first=not progress.history)
        if start is None or progress.epoch < start:
            return label_loss(logits_BK, batch.label)
        initial_BK = self._initial_rows(batch, targets, start, progress)
        return update_and_loss(
            logits_BK, targets, batch.index, initial_BK, reweight=self.reweight, reverse_weight=self.reverse_weight
        )

    def _initial_rows(self, batch: Batch, targets: TargetStore, start: int, progress: Progress) -> Tensor | None:
        """Return the initial targets, in the epoch in which a store of running means becomes one of targets."""
        if not isinstance(self.start_epoch, AutoStart) or progress.epoch != start:
            return None
        share = self.start_epoch.label_share(progress.history, start)
        rows_BK = torch.zeros(len(batch), targets.rows.num_columns, device=batch.label.device)
        labels_BK = rows_BK.scatter_(1, batch.label.unsqueeze(1), 1.0)
        return labels_BK if share == 1 else torch.lerp(targets.stored(batch.index), labels_BK, share)


@dataclass(frozen=True, kw_only=True)
class SelfAdaptive(NoisyLabels):
    """Self-adaptive training with E_s determined during training."""

    description = "self-adaptive training"

    start_epoch: int | AutoStart | None = setting(
        AutoStart(), "epochs before the targets move (E_s), or auto: determined during training", parse=parse_start
    )


@dataclass(frozen=True, kw_only=True)
class SelfAdaptiveOfThePaper(NoisyLabels):
    """Exactly Algorithm 2: E_s is fixed, 60 of 200 epochs in the paper, and targets start as the labels."""

    description = "self-adaptive training, start fixed as in the paper"

    start_epoch: int | None = setting(None, "epochs before the targets move (E_s)", least=0, unset="0.3 of the epochs")


@dataclass(frozen=True, kw_only=True)
class SelfAdaptiveSymmetric(SelfAdaptive):
    description = "self-adaptive training with symmetric cross entropy"

    reverse_weight: float = setting(0.1, "weight of reverse cross entropy (w2)", least=0)


@dataclass(frozen=True, kw_only=True)
class WithoutWeights(SelfAdaptive):
    description = "self-adaptive training without re-weighting"

    reweight: bool = False


@dataclass(frozen=True, kw_only=True)
class WithoutAverage(SelfAdaptive):
    description = "self-adaptive training without the moving average"

    moving_average: bool = False
