"""Optimisers and learning rates.

The learning rate is a function of how far training has come, not of a scheduler's hidden state, so there is
nothing to save, and nothing to step in the wrong order.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

OptimizerName = Literal["sgd", "nesterov", "adam", "adamw", "lars"]
ScheduleName = Literal["cosine", "linear", "step", "constant"]


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """The paper's settings for CIFAR (Section 4.2): SGD with momentum, cosine to zero."""

    name: OptimizerName = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: ScheduleName = "cosine"
    milestones: tuple[int, ...] = ()  # epochs after which a step schedule multiplies by `gamma`
    gamma: float = 0.1
    warmup_epochs: float = 0.0
    warmup_from: float = 0.0  # learning rate at the start of the warm-up


def learning_rate(settings: OptimizerSettings, epoch: float, epochs: int) -> float:
    """The learning rate after `epoch` epochs (with a fraction for the steps between) of `epochs`."""
    if epoch < settings.warmup_epochs:
        return settings.warmup_from + (settings.lr - settings.warmup_from) * epoch / settings.warmup_epochs
    done = min(1.0, (epoch - settings.warmup_epochs) / max(epochs - settings.warmup_epochs, 1e-12))
    if settings.schedule == "cosine":
        return settings.lr * (1 + math.cos(math.pi * done)) / 2
    if settings.schedule == "linear":
        return settings.lr * (1 - done)
    if settings.schedule == "step":
        return settings.lr * settings.gamma ** sum(epoch >= milestone for milestone in settings.milestones)
    return settings.lr


def make_optimizer(
    settings: OptimizerSettings,
    parameters: list[nn.Parameter] | list[dict[str, Any]],
    device: torch.device,
    *,
    scaled: bool = False,
) -> Optimizer:
    """The optimiser over these parameters or groups of them, with fused kernels where the device has them.

    `scaled`: losses are scaled, so a step that overflows is skipped. torch's fused SGD does not survive that in its
    first step: its momentum is then memory that nobody has set.
    """
    lr, decay = settings.lr, settings.weight_decay
    if settings.name == "lars":
        return LARS(parameters, lr=lr, momentum=settings.momentum, weight_decay=decay)
    fused = device.type in ("cpu", "cuda", "xpu", "mps")
    if settings.name in ("sgd", "nesterov"):
        return SGD(
            parameters,
            lr=lr,
            momentum=settings.momentum,
            weight_decay=decay,
            nesterov=settings.name == "nesterov",
            fused=fused and not scaled,
        )
    kind = Adam if settings.name == "adam" else AdamW
    return kind(parameters, lr=lr, weight_decay=decay, fused=fused)


class LARS(Optimizer):
    """SGD with momentum whose step is scaled, layer by layer, by |w| / |gradient| (You et al., 2017).

    Vectors (biases, batch normalisation) take plain steps without decay, as in BYOL; so does a group with no `trust`.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 1e-3,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group)
        return result

    def _move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        if parameter.ndim > 1 and group["trust"]:
            gradient = gradient + group["weight_decay"] * parameter
            size, slope = parameter.norm(), gradient.norm()
            scale = torch.where((size > 0) & (slope > 0), group["trust"] * size / slope, 1.0)
            gradient = gradient * scale
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        velocity = state["momentum_buffer"].mul_(group["momentum"]).add_(gradient)
        parameter.sub_(group["lr"] * velocity)
