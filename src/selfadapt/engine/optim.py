"""Optimisers and learning-rate schedules.

The learning rate is a function of the progress of training, without a scheduler's state to save or to step.
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
    """Defaults of the paper for CIFAR (Section 4.2): SGD with momentum, cosine schedule to zero."""

    name: OptimizerName = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: ScheduleName = "cosine"
    milestones: tuple[int, ...] = ()  # epochs after which the step schedule multiplies the rate by `gamma`
    gamma: float = 0.1
    warmup_epochs: float = 0.0
    warmup_from: float = 0.0  # learning rate at the start of the warm-up


def learning_rate(settings: OptimizerSettings, epoch: float, epochs: int) -> float:
    """Return the learning rate after `epoch` of `epochs` epochs, which may be fractional."""
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
    """Create an optimiser of these parameters or groups, with fused kernels where supported.

    `scaled` means that losses are scaled, so that steps that overflow are skipped. If the first step is skipped, the
    momentum of torch's fused SGD is uninitialised memory, so it is not used then.
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
    """SGD with momentum and steps scaled layer by layer with |w| / |gradient| (LARS, You et al., 2017).

    Vectors (biases, batch normalisation) and groups with `trust` 0 take plain steps without weight decay, as in BYOL.
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
            weight_norm, gradient_norm = parameter.norm(), gradient.norm()
            scale = torch.where(
                (weight_norm > 0) & (gradient_norm > 0), group["trust"] * weight_norm / gradient_norm, 1.0
            )
            gradient = gradient * scale
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        velocity = state["momentum_buffer"].mul_(group["momentum"]).add_(gradient)
        parameter.sub_(group["lr"] * velocity)
