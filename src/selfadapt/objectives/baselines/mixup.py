"""mixup: train on convex combinations of pairs of samples.

    x = s x_i + (1 - s) x_j,    t = s one_hot(y_i) + (1 - s) one_hot(y_j),    s ~ Beta(a, a),    a = 1

j is a random partner of i in the batch, and s is drawn once per batch. i is the sample with the larger share: the
mixtures have the same distribution, and the prediction is recorded for that sample.

Paper: Zhang et al., "mixup: Beyond Empirical Risk Minimization", 2018.
When to use it: as a regulariser for images; it slows down memorisation.

Shapes: B samples of a batch, K classes.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from selfadapt.core.device import to_device
from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.data.images.augment import beta
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.objective import Loss, Progress, mean_of
from selfadapt.targets.store import TargetStore


@dataclass(frozen=True, kw_only=True)
class Mixup(ERM):
    description = "mixup"
    paper = "Zhang et al., mixup: Beyond Empirical Risk Minimization, 2018"

    strength: float = setting(1.0, "parameter of the Beta distribution (a); larger for more even mixtures", above=0)

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        share = beta(self.strength, torch.default_generator)
        share = max(share, 1 - share)
        partner_B = to_device(torch.randperm(len(batch)), batch.index.device)
        logits_BK = model(torch.lerp(batch.input[partner_B], batch.input, share)).float()
        losses_B = cross_entropy(logits_BK, batch.label, reduction="none")
        partner_losses_B = cross_entropy(logits_BK, batch.label[partner_B], reduction="none")
        return mean_of(share * losses_B + (1 - share) * partner_losses_B, logits_BK)
