"""Co-teaching: two networks that select training samples for each other.

In each batch each network selects the samples with the smallest loss, and the *other* trains on them. The share of
samples that are left out in epoch T (from 1) grows to the noise rate r and stays there:

    r min(T / T_k, 1),    T_k = 10 of 200 epochs

The method needs the noise rate. With `--noise` it gets the true one, which no other method here knows, and tables say
so. Otherwise it is estimated from the training samples: a network is trained on nine tenths of them, with early
stopping on the last tenth, and predicts that tenth. This yields T_kk, the share of correct labels of class k
(forward_correction.py), and r = 1 - mean of T_kk over the samples, k being the predicted class.

The first network is the result. As published, both networks get the same batches and differ only in their random
weights. With micro-batches or several processes, each part of a batch selects its own samples.

Paper: Han et al., "Co-teaching: Robust Training of Deep Neural Networks with Extremely Noisy Labels", 2018.
When to use it: with a high and known noise rate, and memory and time for two networks.

Shapes: B samples of a batch, K classes, n selected samples, C channels, H by W pixels.
"""

import copy
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.models.backbone import Backbone, FineTuned, initialise
from selfadapt.models.heads import Classifier
from selfadapt.objectives.baselines.early_stopping import EarlyStopping
from selfadapt.objectives.baselines.forward_correction import estimate_transition
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.method import Bench, Task, Trained
from selfadapt.objectives.objective import Loss, Progress

_HELD_OUT = 0.1  # share of the training samples from which the noise rate is estimated


class TwoClassifiers(nn.Module):
    """Two networks of the same architecture, which share only pretrained and frozen weights.

    The outputs of the first come first.
    """

    def __init__(self, backbone: Backbone, num_classes: int) -> None:
        super().__init__()
        self.first = Classifier(backbone, num_classes)
        self.second = copy.deepcopy(self.first)
        redrawn = self.second.head if isinstance(backbone, FineTuned) else self.second
        initialise(layer for layer in redrawn.modules() if all(weight.requires_grad for weight in layer.parameters()))

    def forward(self, images_BCHW: Tensor) -> Tensor:
        return torch.cat([self.first(images_BCHW), self.second(images_BCHW)], 1)


def estimate_noise_rate(probabilities_NK: Tensor) -> float:
    """Estimate the share of wrong labels from out-of-sample predictions of a network trained on them."""
    correct_K = estimate_transition(probabilities_NK).diagonal()
    return 1 - float(correct_K[probabilities_NK.argmax(1)].mean())


@dataclass(frozen=True, kw_only=True)
class CoTeaching(ERM):
    description = "co-teaching"
    paper = "Han et al., Co-teaching: Robust Training of Deep Neural Networks with Extremely Noisy Labels, 2018"
    needs = "the noise rate, or time for a training run to estimate it; memory for two networks"

    noise_rate: float | None = setting(
        None, "share of wrong labels", least=0, most=1, unset="the true one with --noise, else estimated"
    )
    ramp: float = 10 / 200  # of the epochs (T_k)

    def suited(self, task: Task) -> Self:
        return self if self.noise_rate is not None else replace(self, noise_rate=task.noise_rate)

    def summary(self) -> str:
        return "noise rate estimated" if self.noise_rate is None else "given the noise rate"

    def train(self, bench: Bench) -> Trained:
        if self.noise_rate is not None:
            return bench.fit("main", self)
        reduced = bench.holding_out(_HELD_OUT)
        rate = estimate_noise_rate(reduced.predict(reduced.fit("noise-rate", EarlyStopping()), "validation"))
        bench.note(noise_rate=rate)
        return bench.fit("main", replace(self, noise_rate=rate))

    def build(self, backbone: Backbone, num_classes: int) -> nn.Module:
        return TwoClassifiers(backbone, num_classes)

    def loss_of(self, logits_BK: Tensor, batch: Batch, progress: Progress) -> Loss:
        first_BK, second_BK = logits_BK.chunk(2, 1)
        first_losses_B = cross_entropy(first_BK, batch.label, reduction="none")
        second_losses_B = cross_entropy(second_BK, batch.label, reduction="none")
        left_out = (self.noise_rate or 0.0) * min((progress.epoch + 1) / (self.ramp * progress.epochs), 1.0)
        count = max(1, int((1 - left_out) * len(batch)))
        for_first_n = second_losses_B.detach().argsort()[:count]
        for_second_n = first_losses_B.detach().argsort()[:count]
        return Loss.of(first_losses_B[for_first_n].sum() + second_losses_B[for_second_n].sum(), count, first_BK)
