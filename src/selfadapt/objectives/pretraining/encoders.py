"""What self-supervised methods share: encoder, momentum encoder, predictor and online probe.

    h = backbone(x)      the features, which are the result
    f = projector(h)     p = predictor(f), or f without a predictor
    z = the same projection by the momentum encoder:  theta_m <- beta theta_m + (1 - beta) theta

The momentum encoder starts as a copy, receives no gradient, and moves after each step of the optimiser; its batch
normalisation uses batch statistics like the encoder's. With beta = 0 it is the encoder itself. The online probe is a
linear layer on h with its own learning rate, without gradient to h; it exists if there are labels.

Shapes: B images of a batch, F features, D dimensions of a projection, K classes.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from selfadapt.core.errors import UserError
from selfadapt.core.settings import setting
from selfadapt.data.batch import Batch
from selfadapt.models.backbone import Backbone, unwrapped
from selfadapt.models.heads import projection_head
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.method import Task
from selfadapt.objectives.objective import Loss, Progress
from selfadapt.targets.store import TargetStore


class EncodedView(NamedTuple):
    """Outputs of the encoder for one view of a batch."""

    projected_BD: Tensor
    predicted_BD: Tensor
    probed_BK: Tensor | None


class Encoders(nn.Module):
    def __init__(self, backbone: Backbone, num_classes: int, method: "Pretraining") -> None:
        super().__init__()
        hidden, dimensions, normalised = method.hidden, method.dimensions, method.normalised_heads
        self.backbone = backbone
        self.projector: nn.Module = projection_head(backbone.num_features, hidden, dimensions, normalised=normalised)
        self.predictor: nn.Module = nn.Identity()
        if method.predictor:
            self.predictor = projection_head(dimensions, hidden, dimensions, normalised=normalised)
        self.probe = nn.Linear(backbone.num_features, num_classes) if num_classes > 1 else None
        self.momentum_encoder: nn.Module | None = None
        if max(method.beta.start, method.beta.end) > 0:
            self.momentum_encoder = copy.deepcopy(nn.Sequential(self.backbone, self.projector)).requires_grad_(False)

    def forward(self, *views_BCHW: Tensor) -> tuple[EncodedView, ...]:
        return tuple(self._encode(view_BCHW) for view_BCHW in views_BCHW)

    def _encode(self, view_BCHW: Tensor) -> EncodedView:
        features_BF = self.backbone(view_BCHW)
        projected_BD = self.projector(features_BF)
        probed_BK = None if self.probe is None else self.probe(features_BF.detach())
        return EncodedView(projected_BD.float(), self.predictor(projected_BD).float(), probed_BK)

    @torch.no_grad()
    def momentum_encoded(self, view_BCHW: Tensor, encoded: EncodedView) -> Tensor:
        """Return z: the projection by the momentum encoder, or by the encoder itself if there is none."""
        if self.momentum_encoder is None:
            return encoded.projected_BD.detach()
        return cast(Tensor, self.momentum_encoder(view_BCHW).float())

    @torch.no_grad()
    def move_momentum_encoder(self, beta: float) -> None:
        if self.momentum_encoder is None:
            return
        parameters: list[Tensor] = [*self.backbone.parameters(), *self.projector.parameters()]
        torch._foreach_lerp_(list(self.momentum_encoder.parameters()), parameters, 1 - beta)


@dataclass(frozen=True)
class Ramp:
    """A number that changes from `start` to `end` over training along BYOL's cosine."""

    start: float
    end: float

    @classmethod
    def parse(cls, text: str) -> "Ramp":
        """Parse a number such as 0.99, or two such as 0.99:1.0."""
        try:
            numbers = [float(number) for number in text.split(":")]
            if len(numbers) in (1, 2) and all(0 <= number <= 1 for number in numbers):
                return cls(numbers[0], numbers[-1])
        except ValueError:
            pass
        raise UserError(f"{text!r} must be a number within 0..1, or START:END")

    def __str__(self) -> str:
        return f"{self.start:g}" if self.start == self.end else f"{self.start:g}:{self.end:g}"

    def at(self, fraction: float) -> float:
        return self.end - (self.end - self.start) * (math.cos(math.pi * fraction) + 1) / 2


NO_MOMENTUM_ENCODER = Ramp(0, 0)
SLOW = Ramp(0.99, 0.99)
_PROBE_LR, _PROBE_LR_ADAM = 0.4, 1e-3


def normalised_squared_distance(first_BD: Tensor, second_BD: Tensor) -> Tensor:
    """Return |a/|a| - b/|b||^2 for each sample."""
    return (normalize(first_BD, dim=1) - normalize(second_BD, dim=1)).square().sum(1)


@dataclass(frozen=True, kw_only=True)
class Pretraining(ERM):
    """The base class. A method overrides `losses`, or `losses_with_targets` if it has targets."""

    normalised_heads: ClassVar[bool] = True  # with batch normalisation

    hidden: int = setting(4096, "width of the hidden layer of projector and predictor", least=1, most=2**16)
    dimensions: int = setting(256, "dimensions of a projection and a target (D)", least=1, most=2**16)
    predictor: bool = setting(True, "use a predictor after the projector")
    beta: Ramp = setting(
        SLOW,
        "momentum of the momentum encoder; 0.99:1 increases, 0 for none",
        parse=Ramp.parse,
    )
    probe_lr: float | None = setting(
        None, "learning rate of the online probe", above=0, unset="0.4, or 0.001 with Adam"
    )

    def suited(self, task: Task) -> Self:
        adam = task.optimizer in ("adam", "adamw")
        return self if self.probe_lr else replace(self, probe_lr=_PROBE_LR_ADAM if adam else _PROBE_LR)

    def build(self, backbone: Backbone, num_classes: int) -> Encoders:
        return Encoders(backbone, num_classes, self)

    def parameter_groups(self, model: nn.Module, lr: float) -> list[dict[str, Any]]:
        probe = [parameter for name, parameter in model.named_parameters() if name.startswith("probe.")]
        others = [p for name, p in model.named_parameters() if p.requires_grad and not name.startswith("probe.")]
        scale = (self.probe_lr or _PROBE_LR) / lr
        group = {"params": probe, "lr_scale": scale, "weight_decay": 0.0, "trust": 0.0}
        return [{"params": others}, *([group] if probe else [])]

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        views: Sequence[EncodedView] = model(*self.encoder_inputs(batch))
        encoders = _encoders(model)
        if targets is None:
            losses_B = self.losses(encoders, batch, views)
        else:
            losses_B = self.losses_with_targets(encoders, batch, views, targets, progress)
        probed_BK = views[0].probed_BK
        total = losses_B.sum()
        if probed_BK is not None:
            total = total + cross_entropy(probed_BK.float(), batch.label, reduction="sum")
        return Loss.of(total, len(batch), probed_BK, {"pretraining_loss": losses_B.detach()})

    def encoder_inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return the views for the encoder; the momentum encoder may get others."""
        return batch.views

    def losses(self, encoders: Encoders, batch: Batch, views: Sequence[EncodedView]) -> Tensor:
        """Return the loss of each sample, for a method without targets."""
        raise NotImplementedError

    def losses_with_targets(
        self, encoders: Encoders, batch: Batch, views: Sequence[EncodedView], targets: TargetStore, progress: Progress
    ) -> Tensor:
        """Update the targets and return the loss of each sample."""
        raise NotImplementedError

    def after_step(self, model: nn.Module, progress: Progress) -> None:
        _encoders(model).move_momentum_encoder(self.beta.at(progress.fraction))


def _encoders(model: nn.Module) -> Encoders:
    return cast(Encoders, unwrapped(model))
