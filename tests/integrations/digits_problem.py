"""One problem for every door: digits with 40 % symmetric label noise, one network, one optimiser, one seed."""

from dataclasses import dataclass
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

EPOCHS, BATCH, NOISE = 40, 100, 0.4


@dataclass(frozen=True)
class Digits:
    """1,400 images to train on and 397 to test with; `labels` are the noisy ones."""

    images: Tensor
    labels: Tensor
    truth: Tensor
    test_images: Tensor
    test_labels: Tensor

    @property
    def training_set(self) -> TensorDataset:
        return TensorDataset(self.images, self.labels)


def digits(seed: int) -> Digits:
    generator = torch.Generator().manual_seed(seed)
    data: Any = load_digits()
    images, truth = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    order = torch.randperm(len(truth), generator=generator)
    train, test = order[:1400], order[1400:]
    redrawn = torch.rand(len(train), generator=generator) < NOISE
    drawn = torch.randint(10, (len(train),), generator=generator)
    labels = torch.where(redrawn, drawn, truth[train])
    return Digits(images[train], labels, truth[train], images[test], truth[test])


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 10))


def optimizer_of(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-3)


@torch.no_grad()
def test_accuracy(module: nn.Module, data: Digits) -> float:
    module.eval()
    return float((module(data.test_images).argmax(1) == data.test_labels).float().mean())


test_accuracy.__test__ = False  # type: ignore[attr-defined]  # pytest looks for names like this


class Named(nn.Module):
    """The network as the Trainer of Transformers calls one: inputs by name, outputs by name, and its own loss."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, pixels: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.net(pixels)
        return {"logits": logits} if labels is None else {"loss": cross_entropy(logits, labels), "logits": logits}
