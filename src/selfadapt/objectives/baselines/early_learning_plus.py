"""ELR+: early-learning regularisation with mixup and two networks that give each other targets.

Network 1 and its targets t, from the slow average of network 2 (and the other way around):

    theta2' <- r theta2' + (1 - r) theta2 after each step, with r rising to 0.997
    t_i     <- b t_i + (1 - b) softmax(f(x_i; theta2'))                       for the image as it is
    x       =  s x_i + (1 - s) x_j,   y and q in the same way from labels and targets,   s ~ Beta(1, 1)
    L       =  1/B  sum_i  -sum_j y_j log p_j  +  l log(1 - <p, q>)           p = softmax(f(x; theta1))

Both losses are added. The mean of the two networks' logits is the prediction. Published for CIFAR10: b = 0.7, l = 3
with symmetric noise; b = 0.9, l = 1 with asymmetric noise. As in the authors' code, p is clamped to 1e-4 .. 1 - 1e-4
in the second term, r is 0.997 times exp(-5 (1 - x)^2) over the first half of the training, and the result is the
networks themselves, not their averages. Deviation: both networks take their steps together on the same batches, each
with its own mixture; the authors train them alternately for an epoch.

Paper: Liu et al., "Early-Learning Regularization Prevents Memorization of Noisy Labels", 2020.
When to use it: with memory for four networks and more than twice the time.

Shapes: B samples of a batch, K classes, N samples in total.
"""

import copy
import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.models.backbone import Backbone, unwrapped
from selfadapt.objectives.baselines.co_teaching import TwoClassifiers
from selfadapt.objectives.baselines.mixup import Mixture
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.moving_targets import target_momentum
from selfadapt.objectives.objective import Loss, Progress, mean_of
from selfadapt.targets.store import Storage, TargetStore

_MIN_PROBABILITY = 1e-4
_RISING = 0.5  # share of the training in which the momentum of the averages rises


def mixed_losses(logits_BK: Tensor, labels_BK: Tensor, targets_BK: Tensor, strength: float) -> Tensor:
    """Return the loss of each mixture, from mixed labels and mixed targets."""
    p_BK = logits_BK.softmax(1).clamp(_MIN_PROBABILITY, 1 - _MIN_PROBABILITY)
    fit_B = -(labels_BK * logits_BK.log_softmax(1)).sum(1)
    return fit_B + strength * (1 - (p_BK * targets_BK).sum(1)).clamp_min(_MIN_PROBABILITY).log()


class TwoWithAverages(TwoClassifiers):
    """Two networks and their slow averages. In evaluation the output is the mean of the two networks' logits."""

    def __init__(self, backbone: Backbone, num_classes: int) -> None:
        super().__init__(backbone, num_classes)
        self.averages = copy.deepcopy(nn.ModuleList([self.first, self.second])).requires_grad_(False)

    def forward(self, *inputs: Tensor) -> Tensor:
        """In training: the mixtures of each network, and the images as they are; logits side by side (B×4K)."""
        if not self.training:
            return cast(Tensor, (self.first(inputs[0]) + self.second(inputs[0])) / 2)
        for_first, for_second, plain = inputs
        with torch.no_grad():
            averaged = [cast(Tensor, average(plain)) for average in self.averages]
        return torch.cat([self.first(for_first), self.second(for_second), *averaged], 1)

    @torch.no_grad()
    def move_averages(self, momentum: float) -> None:
        parameters: list[Tensor] = [*self.first.parameters(), *self.second.parameters()]
        torch._foreach_lerp_(list(self.averages.parameters()), parameters, 1 - momentum)


@dataclass(frozen=True, kw_only=True)
class EarlyLearningPlus(ERM):
    description = "ELR+: early-learning regularisation, mixup, two networks"
    paper = "Liu et al., Early-Learning Regularization Prevents Memorization of Noisy Labels, 2020"
    needs = "memory for four networks, more than twice the time"

    momentum: float = target_momentum(0.7, "momentum of the targets (b); 0.9 for asymmetric noise and for CIFAR100")
    strength: float = setting(3.0, "weight of the regularisation (l); 1 for asymmetric noise, 7 for CIFAR100", least=0)
    average: float = setting(0.997, "momentum of the averaged networks (r)", least=0, most=1)

    def build(self, backbone: Backbone, num_classes: int) -> nn.Module:
        return TwoWithAverages(backbone, num_classes)

    def initial_targets(self, labels_N: Tensor, num_classes: int, storage: Storage) -> TargetStore | None:
        return TargetStore.empty(len(labels_N), 2 * num_classes, self.momentum, storage)

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        if targets is None:
            raise ValueError("ELR+ needs its targets")
        mixtures = [Mixture.draw(batch.input, 1.0) for _ in range(2)]
        first_BK, second_BK, *averaged = (
            model(*(mix.of(batch.input) for mix in mixtures), batch.input).float().chunk(4, 1)
        )
        rows_BK2 = targets.move(batch.index, torch.cat([logits_BK.detach().softmax(1) for logits_BK in averaged], 1))
        labels_BK = one_hot(batch.label, first_BK.shape[1]).to(first_BK.dtype)
        of_second_BK, of_first_BK = reversed(rows_BK2.chunk(2, 1))
        losses_B = [
            mixed_losses(logits_BK, mix.of(labels_BK), mix.of(own_BK), self.strength)
            for logits_BK, mix, own_BK in zip((first_BK, second_BK), mixtures, (of_second_BK, of_first_BK), strict=True)
        ]
        return mean_of(losses_B[0] + losses_B[1], first_BK)

    def after_step(self, model: nn.Module, progress: Progress) -> None:
        rising = math.exp(-5 * (1 - min(progress.fraction / _RISING, 1)) ** 2)
        cast(TwoWithAverages, unwrapped(model)).move_averages(self.average * rising)
