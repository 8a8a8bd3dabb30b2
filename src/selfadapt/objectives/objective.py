"""What a training method is to the loop.

The meta-algorithm of the paper (Algorithm 1) leaves three choices: the initial targets, the normalisation of
the prediction, and the loss. A method makes the first in `initial_targets` and the other two in `loss`.

Shapes: B samples of a batch, K classes, N samples in all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from selfadapt.data.batch import Batch
from selfadapt.models.heads import Backbone
from selfadapt.targets.store import Storage, TargetStore

Metrics = Mapping[str, float]  # what was measured after an epoch, by name: a line of metrics.jsonl


@dataclass(frozen=True)
class Term:
    """A part of a loss as two sums over samples, because its mean is taken over the whole step."""

    total: Tensor  # sum of weight times loss, with gradient
    weight: Tensor  # sum of the weights, without gradient


@dataclass(frozen=True)
class Loss:
    """The loss of a micro-batch. That of a step is the sum over its terms of total / weight.

    A step may be cut into micro-batches and spread over processes. Only the loop sees all of them, so only the loop
    sums and divides, each term by its own weight.
    """

    terms: tuple[Term, ...]
    logits_BK: Tensor | None = None  # outputs for the classes, where there are any
    measured: Mapping[str, Tensor] = field(default_factory=dict)  # values of samples, to be averaged over the epoch

    @classmethod
    def of(
        cls,
        total: Tensor,
        weight: Tensor,
        logits_BK: Tensor | None = None,
        measured: Mapping[str, Tensor] | None = None,
    ) -> "Loss":
        """A loss of one term."""
        return cls((Term(total, weight),), None if logits_BK is None else logits_BK.detach(), measured or {})

    @property
    def mean(self) -> Tensor:
        """The loss of a step that is this micro-batch alone."""
        return torch.stack([term.total / term.weight for term in self.terms]).sum()


def mean_of(losses_B: Tensor, logits_BK: Tensor | None = None) -> Loss:
    """A loss in which every sample has weight one."""
    total = losses_B.sum()
    return Loss.of(total, torch.full_like(total, len(losses_B)).detach(), logits_BK)


@dataclass(frozen=True)
class Progress:
    """How far training has come."""

    epoch: int  # finished epochs, so it counts from 0
    fraction: float  # of all steps, from 0 to 1
    epochs: int = 1  # in all
    history: Sequence[Metrics] = ()  # of the finished epochs


@dataclass(frozen=True)
class Evidence:
    """How to read a method's targets as evidence about the labels."""

    label_share: float = 0.0  # what of a target is still its given label, and so no evidence
    weighed: bool = False  # whether training weighs a sample by its target
    held_out: bool = False  # targets are predictions that never saw the label, and the network is a CorrectedClassifier


class Objective(Protocol):
    """A training method as the loop and the evaluation see it."""

    def build(self, backbone: Backbone, num_classes: int) -> nn.Module:
        """The backbone with the heads this method needs. The first `num_classes` outputs are the classes."""
        ...

    def parameter_groups(self, model: nn.Module, lr: float) -> list[dict[str, Any]]:
        """What the optimiser learns, in groups. A group's `lr_scale` multiplies the learning rate, `lr` at most."""
        ...

    def initial_targets(self, labels_N: Tensor, num_classes: int, storage: Storage) -> TargetStore | None:
        """t_i before training, or None for a method without targets."""
        ...

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        """One micro-batch: forward (once or several times), targets, weights, loss."""
        ...

    def after_step(self, model: nn.Module, progress: Progress) -> None:
        """What follows the optimiser's step, such as moving a momentum encoder."""
        ...

    def keeps(self, history: Sequence[Metrics]) -> bool:
        """Whether the network as it is after the last epoch of `history` is to be the result.

        The last network kept is the result; if none ever is, the network at the end of training.
        """
        ...

    def started(self, history: Sequence[Metrics], epochs: int) -> int | None:
        """E_s, the epochs before the targets move, as far as it is known; None for a method that has none to move."""
        ...

    def evidence(self, progress: Progress) -> Evidence | None:
        """How to read the targets as evidence about the labels; None if predictions have to do."""
        ...

    def selectors(self, outputs_NO: Tensor, num_classes: int) -> Mapping[str, Tensor]:
        """What the method itself says of its confidence, by name: a value for each sample, larger being more."""
        ...

    def trained_for(self) -> float | None:
        """The one coverage that these selectors were trained for; None if they hold for all."""
        ...
