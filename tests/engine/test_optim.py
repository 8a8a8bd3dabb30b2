"""Learning rates against torch's schedulers; LARS against its formula."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, MultiStepLR

from selfadapt.engine.optim import LARS, OptimizerSettings, learning_rate, make_optimizer


def _torch_rates(kind: type[LRScheduler], epochs: int, **options: Any) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    scheduler = kind(optimizer, **options)
    rates = []
    for _ in range(epochs):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return [float(rate) for rate in rates]


def test_cosine_equals_torch() -> None:
    settings = OptimizerSettings(lr=0.3, schedule="cosine")
    ours = [learning_rate(settings, epoch, 20) for epoch in range(20)]
    assert ours == pytest.approx(_torch_rates(CosineAnnealingLR, 20, T_max=20))
    assert learning_rate(settings, 20, 20) == pytest.approx(0.0)


def test_linear_equals_torch() -> None:
    settings = OptimizerSettings(lr=0.3, schedule="linear")
    ours = [learning_rate(settings, epoch, 20) for epoch in range(20)]
    assert ours == pytest.approx(_torch_rates(LinearLR, 20, start_factor=1.0, end_factor=0.0, total_iters=20))
    warmed_up = OptimizerSettings(lr=0.3, schedule="linear", warmup_epochs=5)
    assert [learning_rate(warmed_up, epoch, 20) for epoch in (5, 12.5, 20)] == pytest.approx([0.3, 0.15, 0.0])


def test_steps_equal_torch() -> None:
    settings = OptimizerSettings(lr=0.3, schedule="step", milestones=(7, 12), gamma=0.1)
    ours = [learning_rate(settings, epoch, 20) for epoch in range(20)]
    assert ours == pytest.approx(_torch_rates(MultiStepLR, 20, milestones=[7, 12], gamma=0.1))


def test_warm_up_is_a_line_to_the_peak() -> None:
    settings = OptimizerSettings(lr=0.3, warmup_epochs=5, warmup_from=0.0003)
    assert learning_rate(settings, 0, 95) == pytest.approx(0.0003)
    assert learning_rate(settings, 2.5, 95) == pytest.approx((0.3 + 0.0003) / 2)
    assert learning_rate(settings, 5, 95) == pytest.approx(0.3)
    assert learning_rate(settings, 50, 95) == pytest.approx(0.15)


def test_nesterov_looks_ahead() -> None:
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    settings = OptimizerSettings(name="nesterov", lr=0.1, momentum=0.9, weight_decay=0.01)
    optimizer = make_optimizer(settings, [weight], torch.device("cpu"))
    w, v = weight.detach().double().numpy().copy(), np.zeros(2)
    for step in range(5):
        weight.grad = torch.tensor([0.5, float(step)])
        g = weight.grad.double().numpy() + 0.01 * w
        v = 0.9 * v + g
        w = w - 0.1 * (g + 0.9 * v)
        optimizer.step()
        np.testing.assert_allclose(weight.detach().numpy(), w, atol=1e-5)


def test_lars_equals_its_formula() -> None:
    torch.manual_seed(0)
    matrix, vector = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(4))
    optimizer = LARS([matrix, vector], lr=2.0, momentum=0.9, weight_decay=1e-2)
    w, b = (p.detach().double().numpy().copy() for p in (matrix, vector))
    v_w, v_b = np.zeros_like(w), np.zeros_like(b)
    for step in range(5):
        generator = torch.Generator().manual_seed(step)
        matrix.grad = torch.randn(4, 3, generator=generator)
        vector.grad = torch.randn(4, generator=generator)
        g = matrix.grad.double().numpy() + 1e-2 * w
        v_w = 0.9 * v_w + 1e-3 * np.linalg.norm(w) / np.linalg.norm(g) * g
        v_b = 0.9 * v_b + vector.grad.double().numpy()
        w, b = w - 2.0 * v_w, b - 2.0 * v_b
        optimizer.step()
        np.testing.assert_allclose(matrix.detach().numpy(), w, atol=1e-5)
        np.testing.assert_allclose(vector.detach().numpy(), b, atol=1e-5)


@pytest.mark.parametrize("name", ["sgd", "nesterov", "adam", "adamw", "lars"])
def test_every_optimiser_lowers_a_loss(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8, bias=False), nn.Tanh(), nn.Linear(8, 1, bias=False))
    settings = OptimizerSettings(name=name, lr=0.05 if name != "lars" else 5.0, weight_decay=0.0)  # type: ignore[arg-type]
    optimizer = make_optimizer(settings, list(model.parameters()), torch.device("cpu"))
    x = torch.randn(64, 3)
    y = x.sum(1, keepdim=True)
    losses = []
    for _ in range(60):
        loss = (model(x) - y).square().mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.5 * losses[0]
