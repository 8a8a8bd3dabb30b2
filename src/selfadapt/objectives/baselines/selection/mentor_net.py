"""MentorNet with its predefined curriculum (PD): samples with a large loss weigh less.

    v_i = min(max(1 - (l_i - m) / c, 0), 1)            l_i the cross entropy of sample i
    L   = 1/B  sum_i  d_i v_i l_i

m is a running mean (0.9) of the 75th percentile of the losses of a batch, and c = 1 the width over which the weight
falls. d_i leaves out samples at random: half of each batch in the first 17 % of the epochs, then one in twenty.

Reading: the authors train a small network, the mentor, to reproduce this curriculum, and use its outputs. Here the
curriculum itself is used, which the paper gives in closed form. The data-driven curriculum (DD), which needs samples
with clean labels, is not implemented. At a noise rate of 0.8 the authors use the 50th percentile.

Paper: Jiang et al., "MentorNet: Learning Data-Driven Curriculum for Very Deep Neural Networks on Corrupted Labels",
2018.
When to use it: as a baseline that is close to self-paced learning, at the price of ordinary training.

Shapes: B samples of a batch, K classes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from selfadapt.core import distributed
from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.models.backbone import Backbone, unwrapped
from selfadapt.models.heads import Classifier
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.objective import Loss, Progress, mean_of
from selfadapt.targets.store import TargetStore

_DECAY = 0.9
_EARLY, _LEFT_OUT_EARLY, _LEFT_OUT = 0.17, 0.5, 0.05


def curriculum_weights(losses_B: Tensor, threshold: Tensor | float, width: float) -> Tensor:
    return (1 - (losses_B - threshold) / width).clamp(0, 1)


@dataclass(frozen=True, kw_only=True)
class MentorNet(ERM):
    description = "MentorNet, predefined curriculum"
    paper = "Jiang et al., MentorNet: Learning Data-Driven Curriculum for Very Deep Neural Networks …, 2018"

    percentile: float = setting(0.75, "share of the losses below the threshold; 0.5 for much noise", least=0, most=1)
    width: float = setting(1.0, "width over which the weight falls to zero", above=0)

    def build(self, backbone: Backbone, num_classes: int) -> nn.Module:
        return Classifier(backbone, num_classes, threshold=torch.zeros(()))  # the running percentile, from zero (code)

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        logits_BK = model(batch.input).float()
        losses_B = cross_entropy(logits_BK, batch.label, reduction="none")
        threshold = unwrapped(model).get_buffer("threshold")
        with torch.no_grad():
            now = distributed.all_reduce_sum(losses_B.quantile(self.percentile)) / distributed.world_size()
            threshold.lerp_(now, 1 - _DECAY)
            weights_B = curriculum_weights(losses_B, threshold, self.width)
            left_out = _LEFT_OUT_EARLY if progress.epoch < _EARLY * progress.epochs else _LEFT_OUT
            order_B = torch.randperm(len(batch), device=losses_B.device)
            weights_B[order_B[int(len(batch) * (1 - left_out)) :]] = 0
        return mean_of(weights_B * losses_B, logits_BK)
