"""TRADES and PGD training, with and without self-adaptive targets, written out in plain torch and numpy.

It shares nothing with the package but the model it is given: the attack, the targets, both terms and their divisors are
written once more, and one backward pass takes the whole step, whatever parts it came in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div

Part = tuple[int, Tensor, Tensor, Tensor]  # who draws for it; images, labels and places of a micro-batch


@dataclass
class TradesByHand:
    model: nn.Module
    table: Any  # N×K, the targets
    generators: Sequence[torch.Generator]  # of each process
    start_epoch: int | None
    alpha: float = 0.9
    beta: float = 6.0
    eps: float = 0.031
    step: float = 0.007
    steps: int = 10

    def loss(self, parts: Sequence[Part], epoch: int) -> Tensor:
        """The loss of a step that came in these parts."""
        adaptive = self.start_epoch is not None and epoch >= self.start_epoch
        first, weight, second, count = torch.zeros(()), 0.0, torch.zeros(()), 0
        for process, x, y, index in parts:
            moved = self._moved(x, 0.001 * torch.randn(x.shape, generator=self.generators[process]))
            clean, others = self.model(x), self.model(moved)
            targets = torch.eye(clean.shape[1])[y]
            if adaptive:
                p = clean.detach().double().softmax(1).numpy()
                self.table[index] = self.alpha * self.table[index] + (1 - self.alpha) * p
                targets = torch.tensor(np.array(self.table[index]), dtype=torch.float32)
            w = targets.max(1).values
            first = first - (w * (targets * clean.log_softmax(1)).sum(1)).sum()
            weight += w.sum().item()
            second = second + kl_div(others.log_softmax(1), clean.softmax(1), reduction="sum")
            count += len(y)
        return first / weight + self.beta * second / count

    def _moved(self, x: Tensor, shift: Tensor) -> Tensor:
        self.model.eval()
        point, p = (x + shift).clamp(x - self.eps, x + self.eps).clamp(0, 1), self.model(x).softmax(1).detach()
        for _ in range(self.steps):
            point = point.detach().requires_grad_()
            slope = torch.autograd.grad(kl_div(self.model(point).log_softmax(1), p, reduction="sum"), point)[0]
            point = torch.min(torch.max(point + self.step * slope.sign(), x - self.eps), x + self.eps).clamp(0, 1)
        self.model.train()
        return point.detach()


def pgd_loss_by_hand(model: nn.Module, x: Tensor, y: Tensor, shift: Tensor, *, eps: float, step: float) -> Tensor:
    """Cross entropy on the images that ten steps up cross entropy end at."""
    model.eval()
    point = (x + shift).clamp(0, 1)
    for _ in range(10):
        point = point.detach().requires_grad_()
        slope = torch.autograd.grad(cross_entropy(model(point), y, reduction="sum"), point)[0]
        point = torch.min(torch.max(point + step * slope.sign(), x - eps), x + eps).clamp(0, 1)
    model.train()
    return cross_entropy(model(point.detach()), y)
