"""mixup (Zhang et al., "mixup: Beyond Empirical Risk Minimization", 2018).

    x = s x_i + (1 - s) x_j,    t = s one_hot(y_i) + (1 - s) one_hot(y_j),    s ~ Beta(a, a),    a = 1

j is a random partner of i in the batch and s one draw for a batch. Which of the pair is called i is arbitrary, so the
one with the larger share is: the mixtures have the same distribution, and the prediction counts for that sample.

Shapes: B samples of a batch, K classes.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.data.images.augment import beta
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.objective import Loss, Progress, mean_of
from selfadapt.targets.store import TargetStore


@dataclass(frozen=True, kw_only=True)
class Mixup(ERM):
    description: ClassVar[str] = "mixup"
    paper: ClassVar[str] = "Zhang et al., mixup: Beyond Empirical Risk Minimization, 2018"

    strength: float = setting(1.0, "how even the mixtures are (a of the Beta distribution)", above=0)

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        share = beta(self.strength, torch.default_generator)
        share = max(share, 1 - share)
        partner_B = torch.randperm(len(batch)).to(batch.index.device)
        logits_BK = model(torch.lerp(batch.input[partner_B], batch.input, share)).float()
        own_B = cross_entropy(logits_BK, batch.label, reduction="none")
        partners_B = cross_entropy(logits_BK, batch.label[partner_B], reduction="none")
        return mean_of(share * own_B + (1 - share) * partners_B, logits_BK)
