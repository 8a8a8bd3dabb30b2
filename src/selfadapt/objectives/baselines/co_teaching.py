"""Co-teaching (Han et al., "Co-teaching: Robust Training of Deep Neural Networks with Extremely Noisy Labels", 2018).

Two networks. In each batch each picks the samples with the smallest loss, and the *other* learns from them. The share
that is left out in epoch T (from 1 on) grows to the noise rate r and stays there:

    r min(T / T_k, 1),    T_k = 10 of 200 epochs

The method must know the noise rate. With noise put in by `--noise` it is told the true one, which is more than any
other method here knows, and tables say so. Otherwise it is estimated, from the training samples alone: an ordinary
training on nine tenths of them, kept as it was best on the last tenth, predicts that tenth, and from it come T_kk, how
often a label of class k is right (forward_correction.py), and r = 1 - mean of T_kk over the samples, k the class
predicted. The first network is the result. As published, the two see the same batches and differ by their random
weights alone. Where a batch is cut into micro-batches or shared by processes, each part chooses for itself.

Shapes: B samples of a batch, K classes, n samples kept.
"""

import copy
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.models.heads import Backbone, Classifier, FineTuned, draw_anew
from selfadapt.objectives.baselines.early_stopping import EarlyStopping
from selfadapt.objectives.baselines.forward_correction import estimate_transition
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.method import Bench, Task, Trained
from selfadapt.objectives.objective import Loss, Progress
from selfadapt.targets.store import TargetStore

_HELD_OUT = 0.1  # of the training samples, to estimate the noise rate from


class TwoClassifiers(nn.Module):
    """Two networks of the same kind with other weights, but for pretrained and frozen ones.

    The outputs of the first come first.
    """

    def __init__(self, backbone: Backbone, num_classes: int) -> None:
        super().__init__()
        self.first = Classifier(backbone, num_classes)
        self.second = copy.deepcopy(self.first)
        learns_anew = self.second.head if isinstance(backbone, FineTuned) else self.second
        draw_anew(own for own in learns_anew.modules() if all(weight.requires_grad for weight in own.parameters()))

    def forward(self, images_BCHW: Tensor) -> Tensor:
        return torch.cat([self.first(images_BCHW), self.second(images_BCHW)], 1)


def estimate_noise_rate(probabilities_NK: Tensor) -> float:
    """The share of wrong labels by the predictions of a network that was trained on them, for other samples."""
    right_K = estimate_transition(probabilities_NK).diagonal()
    return 1 - float(right_K[probabilities_NK.argmax(1)].mean())


@dataclass(frozen=True, kw_only=True)
class CoTeaching(ERM):
    description: ClassVar[str] = "co-teaching"
    paper: ClassVar[str] = (
        "Han et al., Co-teaching: Robust Training of Deep Neural Networks with Extremely Noisy Labels, 2018"
    )
    needs: ClassVar[str] = "the noise rate, or time for a training to estimate it; memory for two networks"

    noise_rate: float | None = setting(
        None, "the share of wrong labels", least=0, most=1, unset="the true one where noise was put in, else estimated"
    )
    ramp: float = 10 / 200  # of the epochs (T_k)

    def suited(self, task: Task) -> Self:
        return self if self.noise_rate is not None else replace(self, noise_rate=task.noise_rate)

    def summary(self) -> str:
        return "noise rate estimated" if self.noise_rate is None else "told the noise rate"

    def train(self, bench: Bench) -> Trained:
        if self.noise_rate is not None:
            return bench.fit("main", self)
        part = bench.holding_out(_HELD_OUT)
        rate = estimate_noise_rate(part.predict(part.fit("noise-rate", EarlyStopping()), "validation"))
        bench.note(noise_rate=rate)
        return bench.fit("main", replace(self, noise_rate=rate))

    def build(self, backbone: Backbone, num_classes: int) -> nn.Module:
        return TwoClassifiers(backbone, num_classes)

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        first_BK, second_BK = model(batch.input).float().chunk(2, 1)
        losses_of_first_B = cross_entropy(first_BK, batch.label, reduction="none")
        losses_of_second_B = cross_entropy(second_BK, batch.label, reduction="none")
        left_out = (self.noise_rate or 0.0) * min((progress.epoch + 1) / (self.ramp * progress.epochs), 1.0)
        kept = max(1, int((1 - left_out) * len(batch)))
        for_first_n = losses_of_second_B.detach().argsort()[:kept]
        for_second_n = losses_of_first_B.detach().argsort()[:kept]
        total = losses_of_first_B[for_first_n].sum() + losses_of_second_B[for_second_n].sum()
        return Loss.of(total, torch.full_like(total, kept).detach(), first_BK)
