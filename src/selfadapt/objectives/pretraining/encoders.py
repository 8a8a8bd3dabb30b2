"""What methods that learn without labels share: the encoder, one that follows it, the predictor and the online probe.

    h = backbone(x)      the features, which are what is kept in the end
    f = projector(h)     p = predictor(f), or f where a method has none
    z = the same projection by a second encoder, whose weights follow:  theta_m <- beta theta_m + (1 - beta) theta

The follower begins as a copy, never receives a gradient, and moves after each step of the optimiser; its batch
normalisation sees batches like the encoder's. With beta = 0 it is the encoder itself. The online probe is a linear
layer on h with its own learning rate, whose gradient stops at h; it is there where labels are.

Shapes: B images of a batch, F features, D dimensions of a projection, K classes.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from selfadapt.data.loader import Batch
from selfadapt.models.heads import Backbone, projection_head, unwrapped
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.objective import Loss, Progress
from selfadapt.targets.store import Storage, TargetStore


class View(NamedTuple):
    """What the encoder says of one view of a batch."""

    projected_BD: Tensor
    predicted_BD: Tensor
    probed_BK: Tensor | None


class Encoders(nn.Module):
    def __init__(
        self, backbone: Backbone, *, hidden: int, dimensions: int, predictor: bool, follower: bool, num_classes: int
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.projector: nn.Module = projection_head(backbone.num_features, hidden, dimensions)
        self.predictor: nn.Module = projection_head(dimensions, hidden, dimensions) if predictor else nn.Identity()
        self.probe = nn.Linear(backbone.num_features, num_classes) if num_classes > 1 else None
        self.follower: nn.Module | None = None
        if follower:
            self.follower = copy.deepcopy(nn.Sequential(self.backbone, self.projector)).requires_grad_(False)

    def forward(self, *views_BCHW: Tensor) -> tuple[View, ...]:
        return tuple(self._said(view_BCHW) for view_BCHW in views_BCHW)

    def _said(self, view_BCHW: Tensor) -> View:
        features_BF = self.backbone(view_BCHW)
        projected_BD = self.projector(features_BF)
        probed_BK = None if self.probe is None else self.probe(features_BF.detach())
        return View(projected_BD.float(), self.predictor(projected_BD).float(), probed_BK)

    @torch.no_grad()
    def followed(self, view_BCHW: Tensor, said: View) -> Tensor:
        """z: what the follower makes of a view, or the encoder itself where there is none."""
        if self.follower is None:
            return said.projected_BD.detach()
        return cast(Tensor, self.follower(view_BCHW).float())

    @torch.no_grad()
    def follow(self, beta: float) -> None:
        if self.follower is None:
            return
        own = [*self.backbone.parameters(), *self.projector.parameters()]
        for after, parameter in zip(self.follower.parameters(), own, strict=True):
            after.lerp_(parameter, 1 - beta)


@dataclass(frozen=True)
class Ramp:
    """A number that goes from `start` to `end` over training along BYOL's cosine."""

    start: float
    end: float

    def at(self, fraction: float) -> float:
        return self.end - (self.end - self.start) * (math.cos(math.pi * fraction) + 1) / 2


NO_FOLLOWER = Ramp(0, 0)
SLOW = Ramp(0.99, 0.99)


def apart(first_BD: Tensor, second_BD: Tensor) -> Tensor:
    """|a/|a| - b/|b||^2 for each sample."""
    return (normalize(first_BD, dim=1) - normalize(second_BD, dim=1)).square().sum(1)


@dataclass(frozen=True, kw_only=True)
class Pretraining(ERM, ABC):
    """The common ground: a method says in `losses` what pulls predictions where."""

    hidden: int = 4096
    dimensions: int = 256  # D
    predictor: bool = True
    beta: Ramp = SLOW  # momentum of the follower; 0 throughout for none
    probe_lr: float = 0.4
    lr: float = 0.1  # of the encoder, to which the probe's is related

    def build(self, backbone: Backbone, num_classes: int) -> nn.Module:
        return Encoders(
            backbone,
            hidden=self.hidden,
            dimensions=self.dimensions,
            predictor=self.predictor,
            follower=max(self.beta.start, self.beta.end) > 0,
            num_classes=num_classes,
        )

    def parameter_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        encoders = cast(Encoders, unwrapped(model))
        probe = [] if encoders.probe is None else list(encoders.probe.parameters())
        apart_from = {id(parameter) for parameter in probe}
        learned = [p for p in encoders.parameters() if p.requires_grad and id(p) not in apart_from]
        groups: list[dict[str, Any]] = [{"params": learned}]
        if probe:
            groups.append({"params": probe, "pace": self.probe_lr / self.lr, "weight_decay": 0.0, "trust": 0.0})
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
        return Loss(total, weight, None if probed_BK is None else probed_BK.detach(), measured)

    def seen(self, batch: Batch) -> tuple[Tensor, ...]:
        """The views that the encoder gets; the follower may get others."""
        return batch.views

    @abstractmethod
    def losses(
        self, encoders: Encoders, batch: Batch, said: Sequence[View], targets: TargetStore | None, progress: Progress
    ) -> Tensor:
        """The loss of each sample."""

    def after_step(self, model: nn.Module, progress: Progress) -> None:
        cast(Encoders, unwrapped(model)).follow(self.beta.at(progress.fraction))
