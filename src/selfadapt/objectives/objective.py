"""The objective protocol: what a training method provides to the training loop.

The meta-algorithm of the paper (Algorithm 1) leaves three choices: the initial targets, the normalisation of the
prediction, and the loss. A method makes the first in `initial_targets` and the other two in `loss`.

Shapes: B samples of a batch, K classes, N samples in total, O outputs of the network.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from selfadapt.data.batch import Batch
from selfadapt.models.backbone import Backbone
from selfadapt.models.heads import Classifier
from selfadapt.targets.store import Storage, TargetStore

Metrics = Mapping[str, float]  # measurements after an epoch, by name: a line of metrics.jsonl


@dataclass(frozen=True)
class Term:
    """A term of the loss as two sums over samples, because its mean is taken over the whole step."""

    total: Tensor  # sum of weight times loss, with gradient
    weight: Tensor  # sum of the weights, without gradient

    @classmethod
    def of(cls, total: Tensor, weight: Tensor | int) -> "Term":
        return cls(total, weight if isinstance(weight, Tensor) else torch.full_like(total, weight).detach())


@dataclass(frozen=True)
class Loss:
    """The loss of a micro-batch. The loss of a step is the sum over its terms of total / weight.

    A step may be split into micro-batches and over processes. Only the loop sees all of them, so only the loop sums and
    divides, each term by its own weight.
    """

    terms: tuple[Term, ...]
    logits_BK: Tensor | None = None  # class outputs, if any
    measured: Mapping[str, Tensor] = field(default_factory=dict)  # values per sample, averaged; NaN where there is none

    @classmethod
    def of(
        cls,
        total: Tensor,
        weight: Tensor | int,
        logits_BK: Tensor | None = None,
        measured: Mapping[str, Tensor] | None = None,
    ) -> "Loss":
        """Create a loss of one term. An integer weight is a number of samples of weight one."""
        return cls((Term.of(total, weight),), None if logits_BK is None else logits_BK.detach(), measured or {})

    @property
    def mean(self) -> Tensor:
        """The loss of a step that consists of this micro-batch only."""
        return torch.stack([term.total / term.weight for term in self.terms]).sum()


def mean_of(losses_B: Tensor, logits_BK: Tensor | None = None) -> Loss:
    """Create a loss in which every sample has weight one."""
    return Loss.of(losses_B.sum(), len(losses_B), logits_BK)


@dataclass(frozen=True)
class Progress:
    """How far training has progressed."""

    epoch: int  # number of finished epochs
    fraction: float  # of all steps, from 0 to 1
    epochs: int = 1  # in total
    history: Sequence[Metrics] = ()  # of the finished epochs


@dataclass(frozen=True)
class Evidence:
    """How to interpret a method's targets as evidence about the labels."""

    label_share: float = 0.0  # share of a target that is still its given label, and therefore not evidence
    reweighted: bool = False  # whether training weights a sample by its target
    held_out: bool = False  # targets are out-of-sample predictions, and the network is a CorrectedClassifier


class Objective(Protocol):
    """A training method, as the training loop and the evaluation use it.

    Everything but the loss has a default: one head, no targets, the network of the last epoch. Subclass `ERM` and
    override what differs.

    Examples:
        >>> @dataclass(frozen=True, kw_only=True)
        ... class MeanAbsoluteError(ERM):
        ...     def loss_of(self, logits_BK, batch, progress):
        ...         p_B = logits_BK.softmax(1).gather(1, batch.label.unsqueeze(1)).squeeze(1)
        ...         return mean_of(2 * (1 - p_B), logits_BK)
    """

    extra_outputs: ClassVar[int] = 0  # of the network, beyond one for each class

    def build(self, backbone: Backbone, num_classes: int) -> nn.Module:
        """Add the heads of this method to a backbone.

        Args:
            backbone: Network from inputs to features.
            num_classes: Number of classes K.

        Returns:
            A network whose first K outputs are the class logits.
        """
        return Classifier(backbone, num_classes + self.extra_outputs)

    def parameter_groups(self, model: nn.Module, lr: float) -> list[dict[str, Any]]:
        """Group the trainable parameters by the product of the `lr_scale` attributes of the modules that contain them.

        Args:
            model: A network from `build`.
            lr: The largest learning rate of the schedule.

        Returns:
            Parameter groups as `torch.optim` takes them. `lr_scale` multiplies the learning rate of a group.
        """
        scales = dict.fromkeys(model.parameters(), 1.0)
        for module in model.modules():
            scale = float(getattr(module, "lr_scale", 1.0))
            scales |= {parameter: scale * scales[parameter] for parameter in module.parameters() if scale != 1}
        groups: dict[float, dict[str, Any]] = {}
        for parameter, scale in scales.items():
            if parameter.requires_grad:
                # Weight decay grows with the learning rate, so a higher rate goes without it.
                group = {"params": [], "lr_scale": scale, **({"weight_decay": 0.0} if scale > 1 else {})}
                groups.setdefault(scale, group)["params"].append(parameter)
        return list(groups.values())

    def initial_targets(self, labels_N: Tensor, num_classes: int, storage: Storage) -> TargetStore | None:
        """Create the targets t_i before training.

        Args:
            labels_N: Given labels of the training samples.
            num_classes: Number of classes K.
            storage: Where and in which format to keep the targets.

        Returns:
            The store, or None for a method without targets.
        """
        return None

    def before_epoch(
        self, model: nn.Module, samples: Iterable[Batch], targets: TargetStore | None, progress: Progress
    ) -> None:
        """Prepare an epoch, for example by judging all samples.

        Args:
            model: A network from `build`, not wrapped.
            samples: This process's share of the training samples, without augmentation. They are read when iterated.
            targets: The store from `initial_targets`. What the epoch needs must be stored there, so that an interrupted
                epoch can be resumed.
            progress: How far training has progressed.
        """
        return

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        """Compute the loss of a micro-batch: forward passes, update of the targets, weights, loss.

        Args:
            model: A network from `build`, possibly wrapped for data-parallel training.
            batch: Inputs, labels and indices of B samples.
            targets: The store from `initial_targets`.
            progress: How far training has progressed.

        Returns:
            The terms of the loss as sums, with gradient.

        Raises:
            NonFinitePrediction: If the network returns NaN or infinity.
        """
        ...

    def after_step(self, model: nn.Module, progress: Progress) -> None:
        """Update the model after a step of the optimiser, for example its momentum encoder."""
        return

    def keeps(self, history: Sequence[Metrics]) -> bool:
        """Return whether the network after the last epoch of `history` becomes the result.

        The last such network is the result; if there is none, the network at the end of training.
        """
        return False

    def started(self, history: Sequence[Metrics], epochs: int) -> int | None:
        """Return E_s, the number of epochs before the targets move; None if unknown yet or without moving targets."""
        return None

    def evidence(self, progress: Progress) -> Evidence | None:
        """Return how to interpret the targets as evidence about the labels; None to use predictions instead."""
        return None

    def selectors(self, outputs_NO: Tensor, num_classes: int) -> Mapping[str, Tensor]:
        """Return the confidence scores of this method by name: one value per sample, larger for more confident."""
        return {}

    def trained_for(self) -> float | None:
        """Return the coverage that the selectors were trained for; None if they hold for any."""
        return None
