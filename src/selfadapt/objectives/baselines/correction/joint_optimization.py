"""Joint Optimization: train on soft labels that are replaced by averaged predictions, then again on the final ones.

First training, with p_i = softmax(f(x_i)) and s the mean of p over the batch:

    t_i = one_hot(y_i), and from epoch 70 of 200 on the mean of p_i over the ten epochs before
    L   = 1/B sum_i sum_j -t_ij log p_ij  -  a sum_j 1/K log s_j  -  b 1/B sum_i sum_j p_ij log p_ij

The second term keeps all classes in use, the third makes predictions confident. The learning rate is constant and
large, so that the network does not memorise. The second training starts from scratch with the final t, the mean over
the last ten epochs, and has the first term only.

Published for CIFAR10: a = 1.2, b = 0.8 with symmetric noise at 0.7, 0.8 and 0.4 with asymmetric noise. The prior over
classes is uniform. The predictions are those of training steps (code). In short trainings the window is as long as the
time before E_s. The second training has the schedule and the epochs of the run; published are 120 epochs. Micro-batches
and processes each have their own s.

Paper: Tanaka et al., "Joint Optimization Framework for Learning with Noisy Labels", 2018.
When to use it: with balanced classes, and time for two training runs.

Shapes: B samples of a batch, N samples in total, K classes, W epochs of the window; a row of 1 + W times K numbers.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from selfadapt.core.device import kept_on
from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.method import Bench, Task, Trained, rows_of
from selfadapt.objectives.objective import Evidence, Loss, Progress, mean_of
from selfadapt.targets.store import Storage, TargetStore

_START, _WINDOW = 70 / 200, 10  # share of the epochs, epochs


def joint_terms(logits_BK: Tensor, targets_BK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the three terms of the loss without their weights: fit, prior and entropy."""
    log_p_BK = logits_BK.log_softmax(1)
    p_BK = log_p_BK.exp()
    return (
        -(targets_BK * log_p_BK).sum(1).mean(),
        -p_BK.mean(0).log().mean(),
        -(p_BK * log_p_BK).sum(1).mean(),
    )


@dataclass(frozen=True, kw_only=True)
class Relabelling(ERM):
    """The first training. A row of its store has the soft label, and the predictions of the last W epochs."""

    start_epoch: int
    prior_weight: float
    entropy_weight: float

    @property
    def window(self) -> int:
        return min(_WINDOW, self.start_epoch)

    def initial_targets(self, labels_N: Tensor, num_classes: int, storage: Storage) -> TargetStore | None:
        columns = (1 + self.window) * num_classes
        return TargetStore.from_labels(labels_N, columns, storage=replace(storage, top_k=None, dtype=torch.float32))

    def loss_with_targets(self, logits_BK: Tensor, batch: Batch, targets: TargetStore, progress: Progress) -> Loss:
        rows_BWK = targets.stored(batch.index).unflatten(1, (-1, logits_BK.shape[1]))
        if progress.epoch >= self.start_epoch:
            rows_BWK[:, 0] = rows_BWK[:, 1:].mean(1)
        rows_BWK[:, 1 + progress.epoch % self.window] = logits_BK.detach().softmax(1)
        targets.move(batch.index, rows_BWK.flatten(1), momentum=0.0)
        fit, prior, entropy = joint_terms(logits_BK, rows_BWK[:, 0])
        loss = fit + self.prior_weight * prior + self.entropy_weight * entropy
        return Loss.of(loss * len(batch), len(batch), logits_BK)


def final_labels(rows: Iterable[Tensor], num_classes: int) -> Tensor:
    return torch.cat([rows_nC.unflatten(1, (-1, num_classes))[:, 1:].mean(1) for rows_nC in rows])


@dataclass(frozen=True, kw_only=True, eq=False)
class OnSoftLabels(ERM):
    """The second training. Its store holds the final labels from the first time that a sample is seen."""

    labels_NK: Tensor

    def loss_with_targets(self, logits_BK: Tensor, batch: Batch, targets: TargetStore, progress: Progress) -> Loss:
        labels_BK = targets.move(batch.index, kept_on(logits_BK.device, self.labels_NK)[batch.index], momentum=0.0)
        return mean_of(-(labels_BK * logits_BK.log_softmax(1)).sum(1), logits_BK)

    def evidence(self, progress: Progress) -> Evidence | None:
        return Evidence()


@dataclass(frozen=True, kw_only=True)
class JointOptimization(ERM):
    description = "Joint Optimization: replaced labels, then a second training on them"
    paper = "Tanaka et al., Joint Optimization Framework for Learning with Noisy Labels, 2018"
    needs = "balanced classes, time for two training runs"

    start_epoch: int | None = setting(
        None,
        "epochs before labels are replaced",
        option="--start-epoch",
        least=1,
        unset="35 % of the epochs",
    )
    prior_weight: float = setting(1.2, "weight of the prior over classes (a); 0.8 for asymmetric noise", least=0)
    entropy_weight: float = setting(0.8, "weight of the entropy (b); 0.4 for asymmetric noise", least=0)
    num_classes: int = 0

    def suited(self, task: Task) -> Self:
        start = max(1, int(_START * task.epochs)) if self.start_epoch is None else self.start_epoch
        task.check_phase("--start-epoch", start, "; give at least 2 epochs")
        return replace(self, start_epoch=start, num_classes=task.num_classes)

    def initial_targets(self, labels_N: Tensor, num_classes: int, storage: Storage) -> TargetStore | None:
        return TargetStore.from_labels(labels_N, num_classes, storage=storage)

    def train(self, bench: Bench) -> Trained:
        relabelling = Relabelling(
            start_epoch=self.start_epoch or 1, prior_weight=self.prior_weight, entropy_weight=self.entropy_weight
        )
        first = bench.fit("relabelling", relabelling, constant_rate=True)
        return bench.fit("main", OnSoftLabels(labels_NK=final_labels(rows_of(first), self.num_classes)))

    def evidence(self, progress: Progress) -> Evidence | None:
        return Evidence()
