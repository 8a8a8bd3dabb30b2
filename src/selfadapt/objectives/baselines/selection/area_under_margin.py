"""Area under the margin (AUM): remove labels whose margin stays as small as that of labels known to be wrong.

    M_i^e = z_i[y_i] - max_{k != y_i} z_ik         z_i the logits of sample i in epoch e, in its training step
    AUM_i = mean of M_i^e over the epochs e

Some samples, N / (K + 1) drawn at random, get the label of an additional class K + 1, which is wrong for each of them:
the threshold samples. A label is removed if its AUM is below the 99th percentile of those AUMs. A second training has
other threshold samples, so that every label is judged at least once. A label judged twice is removed if both trainings
agree (code). The third training is ordinary training on the labels that are left.

The learning rate of the first two trainings is constant and large, so that the network does not memorise. The first
epoch does not count (code). Deviation: these trainings have the batch size and the epochs of the run, where the
authors have smaller batches and half of the epochs.

Labels are ranked by their AUM minus the threshold, the larger difference of the two trainings; so the labels removed
come first. The difference d becomes a target, sigmoid(d) for the given label and the rest for the most likely other
class by the third training, which is the suggestion.

Paper: Pleiss et al., "Identifying Mislabeled Data using the Area Under the Margin Ranking", 2020.
When to use it: to remove wrong labels without knowing how many there are, with time for three training runs.

Shapes: B samples of a batch, N samples in total, n of them threshold samples, K classes.
"""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from selfadapt.core.device import kept_on
from selfadapt.core.errors import UserError
from selfadapt.core.rng import seeded
from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.objectives.baselines.selection.selected_samples import OnSelected
from selfadapt.objectives.erm import ERM, label_loss
from selfadapt.objectives.method import Bench, Task, Trained, rows_of
from selfadapt.objectives.objective import Evidence, Loss, Progress
from selfadapt.targets.store import Storage, TargetStore

_TRAININGS = 2


def margins(logits_BK: Tensor, labels_B: Tensor) -> Tensor:
    """Return the logit of each label minus the largest other logit."""
    label_B1 = labels_B.unsqueeze(1)
    others_BK = logits_BK.scatter(1, label_B1, -torch.inf)
    return logits_BK.gather(1, label_B1).squeeze(1) - others_BK.amax(1)


def above_threshold(areas_N: Tensor, is_threshold_N: Tensor, percentile: float) -> Tensor:
    """Return how far each AUM is above the percentile of the threshold samples; minus infinity for these."""
    above_N = areas_N - areas_N[is_threshold_N].quantile(percentile, interpolation="higher")
    return above_N.masked_fill(is_threshold_N, -torch.inf)


@dataclass(frozen=True, kw_only=True, eq=False)
class Margins(ERM):
    """One of the first trainings. Its store has the AUM of each sample."""

    extra_outputs = 1  # the class of the threshold samples

    is_threshold_N: Tensor

    def initial_targets(self, labels_N: Tensor, num_classes: int, storage: Storage) -> TargetStore | None:
        return TargetStore.empty(len(labels_N), 1, storage=replace(storage, top_k=None, dtype=torch.float32))

    def loss_with_targets(self, logits_BK: Tensor, batch: Batch, targets: TargetStore, progress: Progress) -> Loss:
        is_threshold_B = kept_on(batch.label.device, self.is_threshold_N)[batch.index]
        labels_B = torch.where(is_threshold_B, logits_BK.shape[1] - 1, batch.label)
        if progress.epoch > 0:
            margins_B1 = margins(logits_BK.detach(), labels_B).unsqueeze(1)
            targets.move(batch.index, margins_B1, momentum=1 - 1 / progress.epoch)
        return label_loss(logits_BK, labels_B)


@dataclass(frozen=True, kw_only=True, eq=False)
class OnLargeMargins(OnSelected):
    """The third training."""

    above_N: Tensor  # AUM above the threshold

    def initial_targets(self, labels_N: Tensor, num_classes: int, storage: Storage) -> TargetStore | None:
        return TargetStore.from_labels(labels_N, num_classes, storage=storage)

    def loss_with_targets(self, logits_BK: Tensor, batch: Batch, targets: TargetStore, progress: Progress) -> Loss:
        trust_B1 = kept_on(batch.label.device, self.above_N)[batch.index].sigmoid().unsqueeze(1)
        label_BK = one_hot(batch.label, logits_BK.shape[1]).to(logits_BK.dtype)
        other_B = logits_BK.detach().masked_fill(label_BK.bool(), -torch.inf).argmax(1)
        rows_BK = trust_B1 * label_BK + (1 - trust_B1) * one_hot(other_B, logits_BK.shape[1])
        targets.move(batch.index, rows_BK, momentum=0.0)
        return self.loss_of(logits_BK, batch, progress)


@dataclass(frozen=True, kw_only=True)
class AreaUnderMargin(ERM):
    description = "AUM: labels with small margins removed, then training on the others"
    paper = "Pleiss et al., Identifying Mislabeled Data using the Area Under the Margin Ranking, 2020"
    needs = "time for three training runs"

    percentile: float = setting(
        0.99, "percentile of the threshold samples' margins below which a label is removed", least=0, most=1
    )
    num_classes: int = 0
    num_samples: int = 0
    seed: int = 0

    def suited(self, task: Task) -> Self:
        if task.epochs < 2:
            raise UserError("--method aum does not count the first epoch; train for 2 epochs or more")
        if task.num_samples < 2 * (task.num_classes + 1):
            raise UserError(f"--method aum needs more than {task.num_samples} training samples for two threshold sets")
        return replace(self, num_classes=task.num_classes, num_samples=task.num_samples, seed=task.seed)

    def initial_targets(self, labels_N: Tensor, num_classes: int, storage: Storage) -> TargetStore | None:
        return TargetStore.from_labels(labels_N, num_classes, storage=storage)

    def train(self, bench: Bench) -> Trained:
        order_N = torch.randperm(self.num_samples, generator=seeded(self.seed, "threshold samples"))
        above = []
        for number, index_n in enumerate(order_N.split(self.num_samples // (self.num_classes + 1))[:_TRAININGS], 1):
            is_threshold_N = torch.zeros(self.num_samples, dtype=torch.bool).index_fill_(0, index_n, True)
            trained = bench.fit(f"margins-{number}", Margins(is_threshold_N=is_threshold_N), constant_rate=True)
            areas_N = torch.cat([*rows_of(trained)])[:, 0]
            above.append(above_threshold(areas_N, is_threshold_N, self.percentile))
        above_N = torch.stack(above).amax(0)
        bench.note(removed=float((above_N < 0).float().mean()))
        return bench.fit("main", OnLargeMargins(chosen_N=above_N >= 0, above_N=above_N))

    def evidence(self, progress: Progress) -> Evidence | None:
        return Evidence()
