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
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from selfadapt.core.device import to_device
from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.data.images.augment import beta
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.objective import Loss, Progress, mean_of
from selfadapt.targets.store import TargetStore


@dataclass(frozen=True)
class Mixture:
    """A share of at least one half, and a partner for each sample of a batch."""

    share: float
    partner_B: Tensor

    @classmethod
    def draw(cls, inputs: Tensor, strength: float) -> "Mixture":
        share = beta(strength, torch.default_generator)
        return cls(max(share, 1 - share), to_device(torch.randperm(len(inputs)), inputs.device))

    def of(self, values: Tensor) -> Tensor:
        return torch.lerp(values[self.partner_B], values, self.share)


@dataclass(frozen=True, kw_only=True)
class Mixup(ERM):
    description = "mixup"
    paper = "Zhang et al., mixup: Beyond Empirical Risk Minimization, 2018"

    strength: float = setting(1.0, "parameter of the Beta distribution (a); larger for more even mixtures", above=0)

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        mixture = Mixture.draw(batch.input, self.strength)
        logits_BK = model(mixture.of(batch.input)).float()
        losses_B = cross_entropy(logits_BK, batch.label, reduction="none")
        partner_losses_B = cross_entropy(logits_BK, batch.label[mixture.partner_B], reduction="none")
        return mean_of(mixture.share * losses_B + (1 - mixture.share) * partner_losses_B, logits_BK)
