"""Generalised cross entropy (GCE): between cross entropy and mean absolute error, plain and truncated.

    L_q(p, y) = (1 - p_y^q) / q,    q = 0.7                                 (Equation 6)
    truncated: from a third of the epochs on, samples with p_y <= k = 0.5 are left out (Section 3.3)

Published: 120 epochs, pruning at epoch 40 and again every 10 epochs. Here these are the same shares of the epochs.

Deviation: the p_y used for pruning is that of the sample's last visit in training. The original computes it in an
additional pass over the data.

Paper: Zhang and Sabuncu, "Generalized Cross Entropy Loss for Training Deep Neural Networks with Noisy Labels", 2018.
When to use it: as a robust loss without state; truncated, with moderate noise and many epochs.

Shapes: B samples of a batch, K classes, N samples in total.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.objective import Loss, Progress, mean_of
from selfadapt.targets.store import Storage, TargetStore

_MIN_PROBABILITY = 1e-7  # the gradient of p^q is infinite at 0


def generalized_cross_entropy(logits_BK: Tensor, labels_B: Tensor, q: float = 0.7) -> Tensor:
    """Return (1 - p_y^q) / q for each sample."""
    p_B = logits_BK.softmax(1).gather(1, labels_B.unsqueeze(1)).squeeze(1)
    return (1 - p_B.clamp_min(_MIN_PROBABILITY) ** q) / q


@dataclass(frozen=True, kw_only=True)
class GeneralizedCrossEntropy(ERM):
    description = "generalised cross entropy"
    paper = (
        "Zhang and Sabuncu, Generalized Cross Entropy Loss for Training Deep Neural Networks with Noisy Labels, 2018"
    )

    q: float = setting(0.7, "from cross entropy (0) to mean absolute error (1)", above=0, most=1)

    def loss_of(self, logits_BK: Tensor, batch: Batch, progress: Progress) -> Loss:
        return mean_of(generalized_cross_entropy(logits_BK, batch.label, self.q), logits_BK)


@dataclass(frozen=True, kw_only=True)
class TruncatedGeneralizedCrossEntropy(GeneralizedCrossEntropy):
    description = "generalised cross entropy, truncated"

    threshold: float = setting(0.5, "samples whose label has a lower probability are left out (k)", least=0, below=1)
    start: float = 40 / 120  # of the epochs
    interval: float = 10 / 120  # of the epochs

    def initial_targets(self, labels_N: Tensor, num_classes: int, storage: Storage) -> TargetStore | None:
        """Store the predictions for pruning: the labels before the first pruning, so that no sample is left out."""
        return TargetStore.from_labels(labels_N, num_classes, 0.0, storage)

    def loss_with_targets(self, logits_BK: Tensor, batch: Batch, targets: TargetStore, progress: Progress) -> Loss:
        label_p_B = targets.stored(batch.index).gather(1, batch.label.unsqueeze(1)).squeeze(1)
        kept_B = (label_p_B > self.threshold).float()
        if self._prunes_after(progress):
            targets.move(batch.index, logits_BK.detach().softmax(1))
        # A left-out sample has a constant loss; as published, the mean is over the whole batch.
        constant = (1 - self.threshold**self.q) / self.q
        losses_B = generalized_cross_entropy(logits_BK, batch.label, self.q)
        return mean_of(torch.lerp(torch.full_like(losses_B, constant), losses_B, kept_B), logits_BK)

    def _prunes_after(self, progress: Progress) -> bool:
        """Return whether the current epoch is the last before a pruning."""

        def prunings(epoch: int) -> int:
            share = epoch / progress.epochs
            return 0 if share < self.start else 1 + int((share - self.start) / self.interval + 1e-9)

        return prunings(progress.epoch + 1) > prunings(progress.epoch)
