"""Co-teaching (Han et al., "Co-teaching: Robust Training of Deep Neural Networks with Extremely Noisy Labels", 2018).

Two networks. In each batch each picks the samples with the smallest loss, and the *other* learns from them. The share
that is left out grows from 0 to the noise rate over the first 10 epochs of 200 and stays there.

The method must be told the noise rate. With noise put in by `--noise` it gets the true rate, which is more than any
other method here knows; otherwise `--noise-rate`, by default 0.2 as in the authors' program. The first network is the
result. As published, the two see the same batches and differ by their random weights alone. Where a batch is cut into
micro-batches or shared by processes, each part chooses for itself.

Shapes: B samples of a batch, K classes, n samples kept.
"""

import copy
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from selfadapt.data.loader import Batch
from selfadapt.models.heads import Backbone, Classifier
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.method import Task
from selfadapt.objectives.objective import Loss, Progress
from selfadapt.setting import setting
from selfadapt.targets.store import TargetStore

_ASSUMED_NOISE = 0.2


class TwoClassifiers(nn.Module):
    """Two networks of the same kind with other weights; the outputs of the first come first."""

    def __init__(self, backbone: Backbone, num_classes: int) -> None:
        super().__init__()
        self.first = Classifier(backbone, num_classes)
        self.second = copy.deepcopy(self.first)
        for module in self.second.modules():
            if isinstance(module, nn.Conv2d):  # drawn as the backbones draw them
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.Linear):
                module.reset_parameters()

    def forward(self, images_BCHW: Tensor) -> Tensor:
        return torch.cat([self.first(images_BCHW), self.second(images_BCHW)], 1)


@dataclass(frozen=True, kw_only=True)
class CoTeaching(ERM):
    words: ClassVar[str] = "co-teaching"
    paper: ClassVar[str] = (
        "Han et al., Co-teaching: Robust Training of Deep Neural Networks with Extremely Noisy Labels, 2018"
    )
    needs: ClassVar[str] = "the noise rate; memory for two networks"

    noise_rate: float | None = setting(
        None, "the share of wrong labels", least=0, most=1, unset="the true one where noise was put in, else 0.2"
    )
    ramp: float = 10 / 200  # of the epochs

    def suited(self, task: Task) -> Self:
        if self.noise_rate is not None:
            return self
        return replace(self, noise_rate=_ASSUMED_NOISE if task.noise_rate is None else task.noise_rate)

    def build(self, backbone: Backbone, num_classes: int) -> nn.Module:
        return TwoClassifiers(backbone, num_classes)

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        first_BK, second_BK = model(batch.input).float().chunk(2, 1)
        losses_of_first_B = cross_entropy(first_BK, batch.label, reduction="none")
        losses_of_second_B = cross_entropy(second_BK, batch.label, reduction="none")
        left_out = (self.noise_rate or 0.0) * min(progress.epoch / (self.ramp * progress.epochs), 1.0)
        kept = max(1, int((1 - left_out) * len(batch)))
        for_first_n = losses_of_second_B.detach().argsort()[:kept]
        for_second_n = losses_of_first_B.detach().argsort()[:kept]
        total = losses_of_first_B[for_first_n].sum() + losses_of_second_B[for_second_n].sum()
        return Loss.of(total, torch.full_like(total, kept).detach(), first_BK)
