"""Supervised self-adaptive training (Section 3.1, Algorithm 2): labels that may be wrong.

    t_i = one_hot(y_i)                                             before training
    p_i = softmax(f(x_i))
    t_i <- alpha t_i + (1 - alpha) p_i                             from epoch E_s on (epochs count from 0)
    w_i = max_j t_ij                                               of the moved target
    L   = - 1 / (sum_i w_i)  sum_i w_i sum_j t_ij log p_ij

No gradient flows through t or w. Before E_s every target is its label and every weight is one, so the loss is
plain cross entropy, and is computed as such.

Switching the moving average off leaves t_i = one_hot(y_i) and w_i = 1: by the letter of Algorithm 2 that row of
the paper's ablation (Table 2) is ordinary training, and its published figures are at the level of it.

With the symmetric loss (appendix, "Cooperation with Symmetric Cross Entropy") sum_j t_ij log p_ij becomes

    w1 sum_j t_ij log p_ij + w2 sum_j p_ij log t_ij,    w1 = 1, w2 = 0.1

from epoch E_s on; before it the loss is plain cross entropy here too.

Shapes: B samples of a batch, K classes, N samples in all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import one_hot

from selfadapt.data.loader import Batch
from selfadapt.objectives.erm import ERM, label_loss
from selfadapt.objectives.objective import Figures, Loss, Progress
from selfadapt.objectives.start import AGREEMENT, CHANGE, CONSENSUS_MOMENTUM, OTHERS, PLANTED, AutoStart
from selfadapt.targets.store import Storage, TargetStore

_SMALLEST = 1e-4
_WIDE = 256  # classes


def self_adaptive_cross_entropy(logits: Tensor, targets: Tensor, *, reweight: bool = True) -> Tensor:
    """Cross entropy with soft targets, each sample weighted by its target's largest entry.

    `logits` and `targets` are B×K; the result is the weighted mean over the batch. In a loop of your own:

        loss = self_adaptive_cross_entropy(logits, store.update(index, logits.softmax(1)))
    """
    if logits.shape != targets.shape:
        raise ValueError(f"logits are {tuple(logits.shape)} but targets are {tuple(targets.shape)}; both must be B×K")
    return target_loss(logits, targets, reweight=reweight).mean


def target_loss(logits_BK: Tensor, targets_BK: Tensor, *, reweight: bool) -> Loss:
    """Cross entropy of the prediction with soft targets, as sums over the batch.

    With c_ij = w_i t_ij the loss is - sum_ij c_ij log p_ij, and its slope by the logits p_ij (sum_k c_ik) - c_ij.
    """
    logits_BK, targets_BK = logits_BK.float(), targets_BK.detach().float()
    detached_BK = logits_BK.detach()
    weights_B1 = _weights(targets_BK, reweight)
    counted_BK = targets_BK * weights_B1
    log_p_BK = detached_BK.log_softmax(1)
    total = -counted_BK.reshape(-1).dot(log_p_BK.reshape(-1))
    slope_BK = log_p_BK.exp_().mul_(counted_BK.sum(1, keepdim=True)).sub_(counted_BK)
    return Loss(_KnownSlope.apply(logits_BK, total, slope_BK), weights_B1.sum(), detached_BK)


def _weights(targets_BK: Tensor, reweight: bool) -> Tensor:
    return targets_BK.amax(1, keepdim=True) if reweight else torch.ones_like(targets_BK[:, :1])


def _moving_loss(
    logits_BK: Tensor, targets: TargetStore, index_B: Tensor, first_rows_BK: Tensor | None, *, reweight: bool
) -> Loss:
    """Move the targets, and the loss with them, for rows that are kept exactly and so sum to one.

    The slope by the logits then is w_i (p_ij - t_ij), and what is at hand is used up to make it. With many classes
    exponentials and passes over memory are the cost, so the loss comes from log p_ij = l_ij - log sum_k exp(l_ik) and
    the latter from the likeliest class; with few classes the number of calls is.
    """
    logits_BK = logits_BK.float()
    detached_BK = logits_BK.detach()
    wide = detached_BK.shape[1] >= _WIDE
    scores_BK = detached_BK if wide else detached_BK.log_softmax(1)
    p_BK = scores_BK.softmax(1) if wide else scores_BK.exp()
    rows_BK = targets.move(index_B, p_BK, rows=first_rows_BK)
    weights_B1 = _weights(rows_BK, reweight)
    log_sum_B1 = scores_BK.amax(1, keepdim=True) - p_BK.amax(1, keepdim=True).log_() if wide else None
    slope_BK = p_BK.sub_(rows_BK).mul_(weights_B1)
    total = -rows_BK.mul_(weights_B1).view(-1).dot(scores_BK.reshape(-1))
    if log_sum_B1 is not None:
        total += weights_B1.view(-1).dot(log_sum_B1.view(-1))
    return Loss(_KnownSlope.apply(logits_BK, total, slope_BK), weights_B1.sum(), detached_BK)


class _KnownSlope(torch.autograd.Function):
    """A number whose slope by the logits was written out."""

    @staticmethod
    def forward(ctx: Any, logits_BK: Tensor, total: Tensor, slope_BK: Tensor) -> Tensor:
        ctx.save_for_backward(slope_BK)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (slope_BK,) = ctx.saved_tensors
        return slope_BK * gradients[0], None, None


def reverse_cross_entropy(logits_BK: Tensor, targets_BK: Tensor) -> Tensor:
    """-sum_j p_j log t_j for each sample, with t_j not below 1e-4: a target may be exactly zero."""
    return -(logits_BK.float().softmax(1) * targets_BK.clamp_min(_SMALLEST).log()).sum(1)


@dataclass(frozen=True, kw_only=True)
class NoisyLabels(ERM):
    """Self-adaptive training on labels that may be wrong, with the paper's defaults for 200 epochs of CIFAR."""

    start_epoch: int | AutoStart = 60  # E_s, or how to find it
    momentum: float = 0.9  # alpha
    reweight: bool = True
    moving_average: bool = True
    reverse_weight: float = 0.0  # w2 of the symmetric loss

    def initial_targets(self, labels_N: Tensor, num_classes: int, storage: Storage) -> TargetStore | None:
        if not self.moving_average:
            return None
        return TargetStore.from_labels(labels_N, num_classes, self.momentum, storage)

    def started(self, history: Sequence[Figures], epochs: int) -> int | None:
        """E_s, as far as it is known; None for targets that never move."""
        if not self.moving_average:
            return None
        return self.start_epoch if isinstance(self.start_epoch, int) else self.start_epoch.found(history, epochs)

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        logits_BK: Tensor = model(batch.image)
        if targets is None:  # no moving average
            return label_loss(logits_BK, batch.label)
        start = self.started(progress.history, progress.epochs)
        if start is None:
            assert isinstance(self.start_epoch, AutoStart)
            return self._watched_loss(logits_BK, batch, targets, self.start_epoch, first=not progress.history)
        if progress.epoch < start:
            return label_loss(logits_BK, batch.label)
        first_rows_BK = self._first_rows(batch, targets, start, progress)
        if targets.rows.exact and not self.reverse_weight:
            return _moving_loss(logits_BK, targets, batch.index, first_rows_BK, reweight=self.reweight)
        p_BK = logits_BK.detach().float().softmax(1)
        rows_BK = targets.move(batch.index, p_BK, rows=first_rows_BK)
        loss = target_loss(logits_BK, rows_BK, reweight=self.reweight)
        return self._with_reverse(loss, logits_BK, rows_BK)

    def _first_rows(self, batch: Batch, targets: TargetStore, start: int, progress: Progress) -> Tensor | None:
        """What the targets begin with, in the epoch in which a store that followed the consensus becomes targets."""
        if isinstance(self.start_epoch, int) or progress.epoch != start:
            return None
        share = self.start_epoch.label_share(progress.history, start, self.momentum)
        labels_BK = one_hot(batch.label, targets.rows.num_columns).float()
        return labels_BK if share == 1 else torch.lerp(targets.read(batch.index), labels_BK, share)

    def label_share(self, history: Sequence[Figures], epochs: int, epoch: int) -> float:
        """How much of each target is still the given label after so many of the epochs."""
        start = self.started(history, epochs)
        if start is None:
            return 0.0
        if isinstance(self.start_epoch, int):
            return float(self.momentum ** max(0, epoch - start))
        if epoch <= start:  # the store still holds the consensus, which knows no label
            return 0.0
        return float(self.start_epoch.label_share(history, start, self.momentum) * self.momentum ** (epoch - start))

    def _with_reverse(self, loss: Loss, logits_BK: Tensor, targets_BK: Tensor) -> Loss:
        if not self.reverse_weight:
            return loss
        weights_B = targets_BK.amax(1) if self.reweight else torch.ones_like(targets_BK[:, 0])
        reverse = weights_B.dot(reverse_cross_entropy(logits_BK, targets_BK))
        return replace(loss, total=loss.total + self.reverse_weight * reverse)

    def _watched_loss(
        self, logits_BK: Tensor, batch: Batch, targets: TargetStore, auto: AutoStart, *, first: bool
    ) -> Loss:
        """The loss with some labels planted, and what tells when to start. The store follows the consensus.

        In the first epoch the consensus is the prediction.
        """
        p_BK = logits_BK.detach().float().softmax(1)
        decoy_B, planted_B = auto.decoys(batch.index, batch.label, p_BK.shape[1])
        p_decoy_B = p_BK.gather(1, decoy_B.unsqueeze(1)).squeeze(1)
        before_BK = p_BK if first else targets.rows.read(batch.index.to(targets.rows.device)).to(p_BK.device)
        after_BK = targets.move(batch.index, p_BK, momentum=CONSENSUS_MOMENTUM, rows=before_BK)
        agreed_B, agrees_B = ((rows_BK.argmax(1) == batch.label).float() for rows_BK in (before_BK, after_BK))
        measured = {
            PLANTED: p_decoy_B[planted_B],
            OTHERS: p_decoy_B[~planted_B],
            AGREEMENT: agrees_B[~planted_B],
            CHANGE: (agrees_B - agreed_B)[~planted_B],
        }
        loss = label_loss(logits_BK, torch.where(planted_B, decoy_B, batch.label))
        return replace(loss, measured=measured)
