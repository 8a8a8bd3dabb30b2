"""What methods that learn without labels share: encoder, momentum encoder, predictor and online probe.

    h = backbone(x)      the features, which are what is kept in the end
    f = projector(h)     p = predictor(f), or f where a method has none
    z = the same projection by the momentum encoder:  theta_m <- beta theta_m + (1 - beta) theta

The momentum encoder begins as a copy, never receives a gradient, and moves after each step of the optimiser; its batch
normalisation sees batches like the encoder's. With beta = 0 it is the encoder itself. The online probe is a linear
layer on h with its own learning rate, whose gradient stops at h; it is there where labels are.

Shapes: B images of a batch, F features, D dimensions of a projection, K classes.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from selfadapt.core.errors import UserError
from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.models.heads import Backbone, projection_head, unwrapped
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.method import Task
from selfadapt.objectives.objective import Loss, Progress
from selfadapt.targets.store import Storage, TargetStore


class View(NamedTuple):
    """What the encoder says of one view of a batch."""

    projected_BD: Tensor
    predicted_BD: Tensor
    probed_BK: Tensor | None


class Encoders(nn.Module):
    def __init__(
        self,
        backbone: Backbone,
        *,
        hidden: int,
        dimensions: int,
        predictor: bool,
        momentum_encoder: bool,
        num_classes: int,
        normalised: bool = True,
    ) -> None:
        """`normalised` heads have batch normalisation."""
        super().__init__()
        self.backbone = backbone
        self.projector: nn.Module = projection_head(backbone.num_features, hidden, dimensions, normalised=normalised)
        self.predictor: nn.Module = nn.Identity()
        if predictor:
            self.predictor = projection_head(dimensions, hidden, dimensions, normalised=normalised)
        self.probe = nn.Linear(backbone.num_features, num_classes) if num_classes > 1 else None
        self.momentum_encoder: nn.Module | None = None
        if momentum_encoder:
            self.momentum_encoder = copy.deepcopy(nn.Sequential(self.backbone, self.projector)).requires_grad_(False)

    def forward(self, *views_BCHW: Tensor) -> tuple[View, ...]:
        return tuple(self._said(view_BCHW) for view_BCHW in views_BCHW)

    def _said(self, view_BCHW: Tensor) -> View:
        features_BF = self.backbone(view_BCHW)
        projected_BD = self.projector(features_BF)
        probed_BK = None if self.probe is None else self.probe(features_BF.detach())
        return View(projected_BD.float(), self.predictor(projected_BD).float(), probed_BK)

    @torch.no_grad()
    def momentum_encoded(self, view_BCHW: Tensor, said: View) -> Tensor:
        """z: what the momentum encoder makes of a view, or the encoder itself where there is none."""
        if self.momentum_encoder is None:
            return said.projected_BD.detach()
        return cast(Tensor, self.momentum_encoder(view_BCHW).float())

    @torch.no_grad()
    def move_momentum_encoder(self, beta: float) -> None:
        if self.momentum_encoder is None:
            return
        own = [*self.backbone.parameters(), *self.projector.parameters()]
        for after, parameter in zip(self.momentum_encoder.parameters(), own, strict=True):
            after.lerp_(parameter, 1 - beta)


@dataclass(frozen=True)
class Ramp:
    """A number that goes from `start` to `end` over training along BYOL's cosine."""

    start: float
    end: float

    @classmethod
    def parse(cls, text: str) -> "Ramp":
        """0.99, or 0.99:1.0 for a number that grows over training."""
        try:
            numbers = [float(number) for number in text.split(":")]
            if len(numbers) in (1, 2) and all(0 <= number <= 1 for number in numbers):
                return cls(numbers[0], numbers[-1])
        except ValueError:
            pass
        raise UserError(f"{text!r} must be a number within 0..1, or two as START:END, for a momentum")

    def __str__(self) -> str:
        return f"{self.start:g}" if self.start == self.end else f"{self.start:g}:{self.end:g}"

    def at(self, fraction: float) -> float:
        return self.end - (self.end - self.start) * (math.cos(math.pi * fraction) + 1) / 2


NO_MOMENTUM_ENCODER = Ramp(0, 0)
SLOW = Ramp(0.99, 0.99)
_PROBE_LR, _PROBE_LR_OF_ADAM = 0.4, 1e-3


def normalised_squared_distance(first_BD: Tensor, second_BD: Tensor) -> Tensor:
    """|a/|a| - b/|b||^2 for each sample."""
    return (normalize(first_BD, dim=1) - normalize(second_BD, dim=1)).square().sum(1)


@dataclass(frozen=True, kw_only=True)
class Pretraining(ERM, ABC):
    """The common ground: a method says in `losses` what pulls predictions where."""

    normalised_heads: ClassVar[bool] = True  # whether heads have batch normalisation

    hidden: int = setting(4096, "width of the hidden layer of projector and predictor", least=1)
    dimensions: int = setting(256, "of a projection and a target (D)", least=1)
    predictor: bool = setting(True, "a predictor after the projector")
    beta: Ramp = setting(SLOW, "momentum of the momentum encoder; 0.99:1 grows, 0 is none", parse=Ramp.parse)
    probe_lr: float | None = setting(
        None, "learning rate of the online probe", above=0, unset="0.4, or 0.001 with Adam"
    )

    def suited(self, task: Task) -> Self:
        adam = task.optimizer in ("adam", "adamw")
        return self if self.probe_lr else replace(self, probe_lr=_PROBE_LR_OF_ADAM if adam else _PROBE_LR)

    def build(self, backbone: Backbone, num_classes: int) -> nn.Module:
        return Encoders(
            backbone,
            hidden=self.hidden,
            dimensions=self.dimensions,
            predictor=self.predictor,
            momentum_encoder=max(self.beta.start, self.beta.end) > 0,
            num_classes=num_classes,
            normalised=self.normalised_heads,
        )

    def parameter_groups(self, model: nn.Module, lr: float) -> list[dict[str, Any]]:
        encoders = cast(Encoders, unwrapped(model))
        probe = [] if encoders.probe is None else list(encoders.probe.parameters())
        apart_from = {id(parameter) for parameter in probe}
        learned = [p for p in encoders.parameters() if p.requires_grad and id(p) not in apart_from]
        groups: list[dict[str, Any]] = [{"params": learned}]
        if probe:
            scale = (self.probe_lr or _PROBE_LR) / lr
            groups.append({"params": probe, "lr_scale": scale, "weight_decay": 0.0, "trust": 0.0})
        return groups

    def initial_targets(self, labels_N: Tensor, num_classes: int, storage: Storage) -> TargetStore | None:
        return None

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        said: Sequence[View] = model(*self.seen(batch))
        losses_B = self.losses(cast(Encoders, unwrapped(model)), batch, said, targets, progress)
        measured: Mapping[str, Tensor] = {"pretraining_loss": losses_B.detach()}
        probed_BK = said[0].probed_BK
        total = losses_B.sum()
        if probed_BK is not None:
            total = total + cross_entropy(probed_BK.float(), batch.label, reduction="sum")
        weight = torch.full_like(total, len(batch)).detach()
        return Loss.of(total, weight, probed_BK, measured)

    def seen(self, batch: Batch) -> tuple[Tensor, ...]:
        """The views that the encoder gets; the momentum encoder may get others."""
        return batch.views

    @abstractmethod
    def losses(
        self, encoders: Encoders, batch: Batch, said: Sequence[View], targets: TargetStore | None, progress: Progress
    ) -> Tensor:
        """The loss of each sample."""

    def after_step(self, model: nn.Module, progress: Progress) -> None:
        cast(Encoders, unwrapped(model)).move_momentum_encoder(self.beta.at(progress.fraction))
