"""The self-adaptive loss: cross entropy with soft targets, re-weighted by their largest entries (Section 3.1).

    w_i = max_j t_ij
    L   = - 1 / (sum_i w_i)  sum_i w_i sum_j t_ij log p_ij,    p_i = softmax(z_i)

The symmetric loss (appendix) adds w2 times the reverse cross entropy of each sample, with the same weights:

    r_i = - sum_j p_ij log t_ij,    t clamped at 1e-4, because a target may be exactly zero

No gradient flows through t or w. The gradient of sample i with respect to its logits is known in closed form, so the
prediction is computed once for loss, gradient and update of the targets:

    w_i (p_ij sum_k t_ik - t_ij  -  w2 p_ij (log t_ij + r_i))

A logit of -inf masks a class: its probability is zero, and the terms of targets that give it none are zero, too.

Shapes: B samples of a batch, K classes.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from selfadapt.core import distributed
from selfadapt.objectives.objective import Loss
from selfadapt.targets.store import TargetStore

_MIN_TARGET = 1e-4
_MANY_CLASSES = 256
_LOWEST = torch.finfo(torch.float32).min  # in place of -inf, of which zero times is not zero
_NO_LOSS = 1e30  # beyond any loss of targets that give masked classes no probability


def self_adaptive_cross_entropy(logits: Tensor, targets: Tensor, *, reweight: bool = True) -> Tensor:
    """Compute the cross entropy with soft targets, each sample weighted by the largest entry of its target.

    Args:
        logits: Outputs of the network (B×K); -inf masks a class.
        targets: Targets from `TargetStore.update` (B×K).
        reweight: Whether to weight the samples.

    Returns:
        The weighted mean over the batch, with gradient with respect to the logits.

    Raises:
        ValueError: If logits and targets differ in shape. On the CPU also if logits are NaN or +inf, if targets are
            NaN, negative or all zero, or give probability to a masked class; on other devices, where checking would
            wait for the device, the loss is then not finite or above 1e30.

    Examples:
        >>> rows = targets.update(index, logits.softmax(1))
        >>> loss = self_adaptive_cross_entropy(logits, rows)
    """
    if not isinstance(logits, Tensor) or not isinstance(targets, Tensor):
        raise ValueError("logits and targets must be tensors")
    if not len(logits):
        raise ValueError("the batch is empty; skip such a step")
    if logits.shape != targets.shape:
        raise ValueError(f"logits are {tuple(logits.shape)} but targets are {tuple(targets.shape)}; both must be B×K")
    targets = targets.detach().float()
    weights_B1 = _weights(targets, reweight)
    if targets.device.type == "cpu":
        largest = weights_B1 if reweight else targets.amax(1)
        if not (float(targets.amin()) >= 0 and float(largest.amin()) > 0):
            _check_targets(targets)
    loss = _cross_entropy(logits, _Prediction.of(logits), targets, weights_B1.div_(weights_B1.sum()))
    if loss.device.type == "cpu" and not abs(float(loss.detach())) < _NO_LOSS:
        check_masked(logits, targets)
    return loss


def check_masked(logits_BK: Tensor, targets_BK: Tensor, index_B: Tensor | None = None) -> None:
    """Raise a ValueError that names the first sample whose cross entropy is not finite."""
    masked_BK = logits_BK.isneginf()
    for invalid_BK, reason in (
        (logits_BK.isnan() | logits_BK.isposinf(), "the logits of {} contain NaN or +infinity"),
        (masked_BK.all(1, keepdim=True), "all logits of {} are -infinity, so that no class is left"),
        (masked_BK & (targets_BK > 0), "the target of {} gives probability to a class whose logit is -infinity"),
    ):
        _raise_for(invalid_BK, reason, index_B)


def _check_targets(targets_BK: Tensor) -> None:
    for invalid_BK, reason in (
        (targets_BK.isnan(), "the target of {} contains NaN"),
        (targets_BK < 0, "the target of {} has a negative entry"),
        ((targets_BK == 0).all(1, keepdim=True), "the target of {} is zero for every class"),
    ):
        _raise_for(invalid_BK, reason, None)


def _raise_for(invalid_BK: Tensor, reason: str, index_B: Tensor | None) -> None:
    rows = invalid_BK.any(1).nonzero().flatten().tolist()
    if rows:
        place = f"row {rows[0]} of the batch"
        raise ValueError(reason.format(place if index_B is None else f"sample {int(index_B[rows[0]])} ({place})"))


def target_loss(logits_BK: Tensor, targets_BK: Tensor, *, reweight: bool) -> Loss:
    """Return the same loss as sums over the batch."""
    targets_BK = targets_BK.detach().float()
    weights_B1 = _weights(targets_BK, reweight)
    total = _cross_entropy(logits_BK, _Prediction.of(logits_BK), targets_BK, weights_B1)
    return Loss.of(total, weights_B1.sum(), logits_BK)


def update_and_loss(
    logits_BK: Tensor,
    targets: TargetStore,
    index_B: Tensor,
    initial_BK: Tensor | None,
    *,
    reweight: bool,
    reverse_weight: float = 0.0,
) -> Loss:
    """Update the targets, which start from `initial_BK` if given, and return the loss with them."""
    prediction, rows_BK = _update(logits_BK, targets, index_B, initial_BK)
    weights_B1 = _weights(rows_BK, reweight)
    exact = targets.rows.exact
    total = _cross_entropy(logits_BK, prediction, rows_BK, weights_B1, reverse_weight, sum_to_one=exact)
    return Loss.of(total, weights_B1.sum(), logits_BK)


def moving_cross_entropy(
    logits_BK: Tensor, targets: TargetStore, index_B: Tensor, *, reverse_weight: float = 0.0
) -> Tensor:
    """Update the targets and return the weighted mean over the batches of all processes.

    This is `update_and_loss` for a step of one micro-batch: the weights are normalised first, so that the backward pass
    has nothing to divide.
    """
    prediction, rows_BK = _update(logits_BK, targets, index_B, None)
    weights_B1 = _weights(rows_BK, reweight=True)
    whole, processes = weights_B1.sum(), distributed.world_size()
    weights_B1.div_(whole if processes == 1 else distributed.all_reduce_sum(whole) / processes)
    exact = targets.rows.exact
    return _cross_entropy(logits_BK, prediction, rows_BK, weights_B1, reverse_weight, sum_to_one=exact)


def _update(
    logits_BK: Tensor, targets: TargetStore, index_B: Tensor, initial_BK: Tensor | None
) -> "tuple[_Prediction, Tensor]":
    prediction = _Prediction.of(logits_BK)
    return prediction, targets.move(index_B, prediction.p_BK, rows=initial_BK)


def _weights(targets_BK: Tensor, reweight: bool) -> Tensor:
    return targets_BK.amax(1, keepdim=True) if reweight else torch.ones_like(targets_BK[:, :1])


class _Prediction(NamedTuple):
    """p without gradient, and log p as scores minus a shift per row.

    With few classes the number of calls determines the cost, and the scores are log p. With many classes exponentials
    and memory traffic do, so the scores are the logits, and the shift follows from the most likely class.
    """

    p_BK: Tensor
    scores_BK: Tensor
    shift_B1: Tensor | None

    @classmethod
    def of(cls, logits_BK: Tensor) -> "_Prediction":
        logits_BK = logits_BK.detach().float()
        if logits_BK.shape[1] < _MANY_CLASSES:
            log_p_BK = logits_BK.log_softmax(1)
            return cls(log_p_BK.exp(), log_p_BK, None)
        p_BK = logits_BK.softmax(1)
        return cls(p_BK, logits_BK, logits_BK.amax(1, keepdim=True) - p_BK.amax(1, keepdim=True).log_())


def _cross_entropy(
    logits_BK: Tensor,
    prediction: _Prediction,
    targets_BK: Tensor,
    weights_B1: Tensor,
    reverse_weight: float = 0.0,
    *,
    sum_to_one: bool = False,
) -> Tensor:
    """Return - sum_i w_i sum_j (t_ij log p_ij + w2 p_ij log t_ij). Overwrites the prediction."""
    p_BK, scores_BK, shift_B1 = prediction
    if reverse_weight:
        log_targets_BK = targets_BK.clamp_min(_MIN_TARGET).log_()
        reverse_B1 = (p_BK * log_targets_BK).sum(1, keepdim=True).neg_()
        reverse_gradient_BK = log_targets_BK.add_(reverse_B1).mul_(p_BK)
    sums_B1 = None if sum_to_one else targets_BK.sum(1, keepdim=True)
    losses_B1 = _products(targets_BK, scores_BK).neg_()
    if shift_B1 is not None:
        losses_B1 += shift_B1 if sums_B1 is None else shift_B1 * sums_B1
    gradient_BK = (p_BK if sums_B1 is None else p_BK.mul_(sums_B1)).sub_(targets_BK)
    if reverse_weight:
        losses_B1.add_(reverse_B1, alpha=reverse_weight)
        gradient_BK.sub_(reverse_gradient_BK, alpha=reverse_weight)
    loss: Tensor = _WithGradient.apply(logits_BK, (losses_B1, gradient_BK, weights_B1))
    return loss


def _products(targets_BK: Tensor, scores_BK: Tensor) -> Tensor:
    """Return sum_j t_ij s_ij (B×1), where zero times -inf is zero. Only the CPU can look first whether it occurs."""
    if scores_BK.device.type == "cpu":
        products_B1 = (targets_BK * scores_BK).sum(1, keepdim=True)
        if not math.isnan(products_B1.sum()):
            return products_B1
    return (targets_BK * scores_BK.clamp_min(_LOWEST)).sum(1, keepdim=True)


class _WithGradient(torch.autograd.Function):
    """A weighted sum of losses whose gradients with respect to the logits are given.

    They are passed as one argument, because each tensor argument takes time.
    """

    @staticmethod
    def forward(ctx: Any, logits_BK: Tensor, known: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        losses_B1, ctx.gradient_BK, ctx.weights_B1 = known
        return losses_B1.view(-1).dot(ctx.weights_B1.view(-1))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        if torch.is_grad_enabled():
            raise RuntimeError("the self-adaptive loss does not support second derivatives; leave out create_graph")
        return ctx.gradient_BK * (ctx.weights_B1 * gradients[0]), None
