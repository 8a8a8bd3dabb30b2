"""Supervised self-adaptive training (Section 3.1, Algorithm 2): labels that may be wrong.

    t_i = one_hot(y_i)                                             before training
    p_i = softmax(f(x_i))
    t_i <- alpha t_i + (1 - alpha) p_i                             from epoch E_s on (epochs count from 0)
    w_i = max_j t_ij                                               of the moved target
    L   = - 1 / (sum_i w_i)  sum_i w_i sum_j t_ij log p_ij

No gradient flows through t or w. Before E_s every target is its label and every weight is one, so the loss is
plain cross entropy, and is computed as such.

Switching the moving average off leaves t_i = one_hot(y_i) and w_i = 1: by the letter of Algorithm 2 that row of
the paper's ablation (Table 2) is ordinary training, and its published numbers are at the level of it.

With the symmetric loss (appendix, "Cooperation with Symmetric Cross Entropy") sum_j t_ij log p_ij becomes

    w1 sum_j t_ij log p_ij + w2 sum_j p_ij log t_ij,    w1 = 1, w2 = 0.1

from epoch E_s on; before it the loss is plain cross entropy here too.

Shapes: B samples of a batch, K classes, N samples in all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from selfadapt.core.errors import UserError
from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.objectives.erm import ERM, label_loss
from selfadapt.objectives.method import Task
from selfadapt.objectives.objective import Evidence, Loss, Metrics, Progress
from selfadapt.objectives.start_epoch import (
    AGREEMENT,
    CHANGE,
    CONFIDENCE,
    CONFIDENT_AGREEMENT,
    INJECTED,
    OTHERS,
    RUNNING_MEAN_MOMENTUM,
    AutoStart,
    confident_agreement,
    parse_start,
)
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
    targets = targets.detach().float()
    weights_B1 = _weights(targets, reweight)
    return _cross_entropy(logits, _Prediction.by(logits), targets, weights_B1.div_(weights_B1.sum()))


def target_loss(logits_BK: Tensor, targets_BK: Tensor, *, reweight: bool) -> Loss:
    """Cross entropy of the prediction with soft targets, as sums over the batch."""
    targets_BK = targets_BK.detach().float()
    weights_B1 = _weights(targets_BK, reweight)
    total = _cross_entropy(logits_BK, _Prediction.by(logits_BK), targets_BK, weights_B1)
    return Loss.of(total, weights_B1.sum(), logits_BK)


def _moving_loss(
    logits_BK: Tensor, targets: TargetStore, index_B: Tensor, first_rows_BK: Tensor | None, *, reweight: bool
) -> Loss:
    """Move the targets, and the loss with them. The prediction is made once for both; exact rows sum to one."""
    prediction = _Prediction.by(logits_BK)
    rows_BK = targets.move(index_B, prediction.p_BK, rows=first_rows_BK)
    weights_B1 = _weights(rows_BK, reweight)
    total = _cross_entropy(logits_BK, prediction, rows_BK, weights_B1, normal=targets.rows.exact)
    return Loss.of(total, weights_B1.sum(), logits_BK)


def _weights(targets_BK: Tensor, reweight: bool) -> Tensor:
    return targets_BK.amax(1, keepdim=True) if reweight else torch.ones_like(targets_BK[:, :1])


class _Prediction(NamedTuple):
    """p and its logarithm, which is the scores less the shift of their row. None of it has a gradient.

    With few classes the number of calls is the cost, and the scores are log p. With many classes exponentials and
    passes over memory are, so the scores are the logits, and the shift comes from the likeliest class.
    """

    p_BK: Tensor
    scores_BK: Tensor
    shift_B1: Tensor | None

    @classmethod
    def by(cls, logits_BK: Tensor) -> "_Prediction":
        logits_BK = logits_BK.detach().float()
        if logits_BK.shape[1] < _WIDE:
            log_p_BK = logits_BK.log_softmax(1)
            return cls(log_p_BK.exp(), log_p_BK, None)
        p_BK = logits_BK.softmax(1)
        return cls(p_BK, logits_BK, logits_BK.amax(1, keepdim=True) - p_BK.amax(1, keepdim=True).log_())


def _cross_entropy(
    logits_BK: Tensor, prediction: _Prediction, targets_BK: Tensor, weights_B1: Tensor, *, normal: bool = False
) -> Tensor:
    """- sum_i w_i sum_j t_ij log p_ij, where `normal` targets sum to one. It uses p up.

    The slope by the logits is w_i (p_ij (sum_k t_ik) - t_ij).
    """
    p_BK, scores_BK, shift_B1 = prediction
    sums_B1 = None if normal else targets_BK.sum(1, keepdim=True)
    losses_B1 = (targets_BK * scores_BK).sum(1, keepdim=True).neg_()
    if shift_B1 is not None:
        losses_B1 += shift_B1 if sums_B1 is None else shift_B1 * sums_B1
    slope_BK = (p_BK if sums_B1 is None else p_BK.mul_(sums_B1)).sub_(targets_BK)
    loss: Tensor = _KnownSlope.apply(logits_BK, (losses_B1, slope_BK, weights_B1))
    return loss


class _KnownSlope(torch.autograd.Function):
    """A weighted sum of losses whose slopes by the logits were written out.

    They come as one argument, because each tensor of its own takes time.
    """

    @staticmethod
    def forward(ctx: Any, logits_BK: Tensor, known: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        losses_B1, ctx.slope_BK, ctx.weights_B1 = known
        return losses_B1.view(-1).dot(ctx.weights_B1.view(-1))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        if torch.is_grad_enabled():
            raise RuntimeError("the self-adaptive loss has no second derivative; leave create_graph out")
        return ctx.slope_BK * (ctx.weights_B1 * gradients[0]), None


def reverse_cross_entropy(logits_BK: Tensor, targets_BK: Tensor) -> Tensor:
    """-sum_j p_j log t_j for each sample, with t_j not below 1e-4: a target may be exactly zero."""
    return -(logits_BK.float().softmax(1) * targets_BK.clamp_min(_SMALLEST).log()).sum(1)


@dataclass(frozen=True, kw_only=True)
class NoisyLabels(ERM):
    """Self-adaptive training on labels that may be wrong, with the paper's defaults for 200 epochs of CIFAR."""

    paper: ClassVar[str] = (
        "Huang et al., Self-Adaptive Training: Bridging Supervised and Self-Supervised Learning, 2022"
    )

    start_epoch: int | AutoStart = 60  # E_s, or how to find it
    momentum: float = setting(
        0.9, "momentum of the targets (alpha)", option="--target-momentum", aliases=("--momentum",), least=0, most=1
    )
    reweight: bool = True
    moving_average: bool = True
    reverse_weight: float = 0.0  # w2 of the symmetric loss

    def suited(self, task: Task) -> Self:
        if isinstance(self.start_epoch, AutoStart):
            return replace(self, start_epoch=replace(self.start_epoch, seed=task.seed))
        check_start(self.start_epoch, task.epochs)
        return self

    def initial_targets(self, labels_N: Tensor, num_classes: int, storage: Storage) -> TargetStore | None:
        if not self.moving_average:
            return None
        return TargetStore.from_labels(labels_N, num_classes, self.momentum, storage)

    def started(self, history: Sequence[Metrics], epochs: int) -> int | None:
        if not self.moving_average:
            return None
        return self.start_epoch if isinstance(self.start_epoch, int) else self.start_epoch.found(history, epochs)

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        logits_BK: Tensor = model(batch.input)
        if targets is None:  # no moving average
            return label_loss(logits_BK, batch.label)
        start = self.started(progress.history, progress.epochs)
        if start is None:
            assert isinstance(self.start_epoch, AutoStart)
            return self._probed_loss(logits_BK, batch, targets, self.start_epoch, first=not progress.history)
        if progress.epoch < start:
            return label_loss(logits_BK, batch.label)
        first_rows_BK = self._first_rows(batch, targets, start, progress)
        if not self.reverse_weight:
            return _moving_loss(logits_BK, targets, batch.index, first_rows_BK, reweight=self.reweight)
        p_BK = logits_BK.detach().float().softmax(1)
        rows_BK = targets.move(batch.index, p_BK, rows=first_rows_BK)
        return self._symmetric_loss(logits_BK, rows_BK)

    def _first_rows(self, batch: Batch, targets: TargetStore, start: int, progress: Progress) -> Tensor | None:
        """What the targets begin with, in the epoch in which a store that held running means becomes targets."""
        if isinstance(self.start_epoch, int) or progress.epoch != start:
            return None
        share = self.start_epoch.label_share(progress.history, start)
        labels_BK = one_hot(batch.label, targets.rows.num_columns).float()
        return labels_BK if share == 1 else torch.lerp(targets.read(batch.index), labels_BK, share)

    def evidence(self, progress: Progress) -> Evidence | None:
        if not self.moving_average:
            return None
        return Evidence(label_share=self._label_share(progress), weighed=self.reweight)

    def _label_share(self, progress: Progress) -> float:
        """How much of each target is still the given label."""
        start = self.started(progress.history, progress.epochs)
        if start is None:
            return 0.0
        if isinstance(self.start_epoch, int):
            return float(self.momentum ** max(0, progress.epoch - start))
        if progress.epoch <= start:  # the store still holds running means, which know no label
            return 0.0
        first_share = self.start_epoch.label_share(progress.history, start)
        return float(first_share * self.momentum ** (progress.epoch - start))

    def _symmetric_loss(self, logits_BK: Tensor, targets_BK: Tensor) -> Loss:
        (forward,) = target_loss(logits_BK, targets_BK, reweight=self.reweight).terms
        weights_B = targets_BK.amax(1) if self.reweight else torch.ones_like(targets_BK[:, 0])
        reverse = weights_B.dot(reverse_cross_entropy(logits_BK, targets_BK))
        return Loss.of(forward.total + self.reverse_weight * reverse, forward.weight, logits_BK)

    def _probed_loss(
        self, logits_BK: Tensor, batch: Batch, targets: TargetStore, auto: AutoStart, *, first: bool
    ) -> Loss:
        """The loss with some wrong labels injected, and what tells when to start. The store holds running means.

        In the first epoch the running mean is the prediction.
        """
        p_BK = logits_BK.detach().float().softmax(1)
        wrong_B, injected_B = auto.probe(batch.index, batch.label, p_BK.shape[1])
        p_wrong_B = p_BK.gather(1, wrong_B.unsqueeze(1)).squeeze(1)
        before_BK = p_BK if first else targets.rows.read(batch.index.to(targets.rows.device)).to(p_BK.device)
        after_BK = targets.move(batch.index, p_BK, momentum=RUNNING_MEAN_MOMENTUM, rows=before_BK)
        agreed_B, agrees_B = ((rows_BK.argmax(1) == batch.label).float() for rows_BK in (before_BK, after_BK))
        confident_B, confidence_B = confident_agreement(after_BK, batch.label)
        measured = {
            INJECTED: p_wrong_B[injected_B],
            OTHERS: p_wrong_B[~injected_B],
            AGREEMENT: agrees_B[~injected_B],
            CHANGE: (agrees_B - agreed_B)[~injected_B],
            CONFIDENCE: confidence_B[~injected_B],
            CONFIDENT_AGREEMENT: confident_B[~injected_B],
        }
        loss = label_loss(logits_BK, torch.where(injected_B, wrong_B, batch.label))
        return replace(loss, measured=measured)


def check_start(start_epoch: int, epochs: int) -> None:
    if start_epoch >= epochs:
        raise UserError(f"--start-epoch {start_epoch} is not before the end, epoch {epochs}: no target would move")


_START_WORDS = "epochs before the targets move (E_s), or auto: found while training"


@dataclass(frozen=True, kw_only=True)
class SelfAdaptive(NoisyLabels):
    """With E_s found while training."""

    description: ClassVar[str] = "self-adaptive training"

    start_epoch: int | AutoStart = setting(AutoStart(), _START_WORDS, parse=parse_start)


@dataclass(frozen=True, kw_only=True)
class SelfAdaptiveOfThePaper(NoisyLabels):
    """Algorithm 2 to the letter: E_s is fixed, and targets begin as the labels. The paper has 60 of 200 epochs."""

    description: ClassVar[str] = "self-adaptive training, start fixed as in the paper"

    start_epoch: int | None = setting(  # type: ignore[assignment]
        None, "epochs before the targets move (E_s)", least=0, unset="0.3 of the epochs"
    )

    def suited(self, task: Task) -> Self:
        start = int(0.3 * task.epochs) if self.start_epoch is None else self.start_epoch
        check_start(start, task.epochs)
        return replace(self, start_epoch=start)


@dataclass(frozen=True, kw_only=True)
class SelfAdaptiveSymmetric(SelfAdaptive):
    description: ClassVar[str] = "self-adaptive training with symmetric cross entropy"

    reverse_weight: float = setting(0.1, "weight of reverse cross entropy (w2)", least=0)


@dataclass(frozen=True, kw_only=True)
class WithoutWeights(SelfAdaptive):
    description: ClassVar[str] = "self-adaptive training without re-weighting"

    reweight: bool = False


@dataclass(frozen=True, kw_only=True)
class WithoutAverage(SelfAdaptive):
    description: ClassVar[str] = "self-adaptive training without the moving average"

    moving_average: bool = False
