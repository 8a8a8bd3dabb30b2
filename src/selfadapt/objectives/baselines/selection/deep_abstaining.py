"""Deep abstaining classifier (DAC): find wrong labels by learning to abstain on them, and train without them.

The first network has one output more than there are classes, for abstaining. With h_i the cross entropy over the
classes alone and a_i the probability of abstaining:

    L = 1/B  sum_i  (1 - a_i) h_i - w log(1 - a_i)

After L_0 epochs of cross entropy over all outputs, w starts at m / 64, where m is a running mean of (1 - a_i) h_i, and
grows linearly to w_T = 1. The second network is trained by ordinary training on the samples on which the first one does
not abstain after its last epoch. L_0 is 20 of 200 epochs.

Reading: abstention is read after the last epoch, so that no clean validation data are needed. The running mean moves by
0.05 in each step (code).

Paper: Thulasidasan et al., "Combating Label Noise in Deep Learning Using Abstention", 2019.
When to use it: as a baseline that removes labels, with time for two training runs.

Shapes: B samples of a batch, N samples in total, K classes.
"""

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from selfadapt.core import distributed
from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.models.backbone import Backbone, unwrapped
from selfadapt.models.heads import Classifier
from selfadapt.objectives.baselines.selection.selected_samples import OnSelected
from selfadapt.objectives.erm import ERM, label_loss
from selfadapt.objectives.method import Bench, Task, Trained
from selfadapt.objectives.objective import Loss, Progress, mean_of
from selfadapt.targets.store import TargetStore

_MAX_ABSTENTION = 1 - 1e-7
_SHARE = 0.05  # of a step in the running mean
_INITIAL_SHARE = 1 / 64  # of the running mean, as the first weight


def abstaining_losses(logits_BK1: Tensor, labels_B: Tensor, weight: Tensor | float) -> Tensor:
    """Return the loss of each sample; the last output is that for abstaining."""
    abstained_B = logits_BK1.softmax(1)[:, -1].clamp_max(_MAX_ABSTENTION)
    losses_B = cross_entropy(logits_BK1[:, :-1], labels_B, reduction="none")
    return (1 - abstained_B) * losses_B - weight * (1 - abstained_B).log()


@dataclass(frozen=True, kw_only=True)
class Abstaining(ERM):
    """The first training. Buffers of the network hold what sets the weight of abstention; NaN means not known yet."""

    warm_up: int
    final_weight: float

    def build(self, backbone: Backbone, num_classes: int) -> nn.Module:
        unknown = torch.tensor(math.nan)
        return Classifier(backbone, num_classes + 1, mean_loss=unknown, initial_weight=unknown.clone())

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        logits_BK1 = model(batch.input).float()
        mean, first = (unwrapped(model).get_buffer(name) for name in ("mean_loss", "initial_weight"))
        with torch.no_grad():
            losses_B = abstaining_losses(logits_BK1, batch.label, 0.0)
            now = distributed.all_reduce_sum(losses_B.mean()) / distributed.world_size()
            mean.copy_(torch.where(mean.isnan(), now, torch.lerp(mean, now, _SHARE)))
        if progress.epoch < self.warm_up:
            return label_loss(logits_BK1, batch.label)
        first.copy_(torch.where(first.isnan(), mean * _INITIAL_SHARE, first))
        weight = torch.lerp(
            first,
            torch.full_like(first, self.final_weight),
            (progress.epoch - self.warm_up) / (progress.epochs - self.warm_up),
        )
        return mean_of(abstaining_losses(logits_BK1, batch.label, weight), logits_BK1)


@dataclass(frozen=True, kw_only=True)
class DeepAbstaining(ERM):
    description = "deep abstaining classifier, then training without the abstained samples"
    paper = "Thulasidasan et al., Combating Label Noise in Deep Learning Using Abstention, 2019"
    needs = "time for two training runs"

    warm_up: int | None = setting(None, "epochs before the first network may abstain", least=0, unset="a tenth")
    final_weight: float = setting(1.0, "weight of abstention in the last epoch (w_T)", above=0)

    def suited(self, task: Task) -> Self:
        warm_up = max(1, task.epochs // 10) if self.warm_up is None else self.warm_up
        task.check_phase("--warm-up", warm_up, "; train for 2 epochs or more")
        return replace(self, warm_up=warm_up)

    def train(self, bench: Bench) -> Trained:
        first = bench.fit("abstaining", Abstaining(warm_up=self.warm_up or 0, final_weight=self.final_weight))
        outputs_NO = bench.outputs(first, "train")
        chosen_N = outputs_NO.argmax(1) < outputs_NO.shape[1] - 1
        bench.note(removed=1 - float(chosen_N.float().mean()))
        return bench.fit("main", OnSelected(chosen_N=chosen_N))
