"""A small network that knows the digits, to be attacked."""

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from selfadapt.data.images.storage import TensorImages
from selfadapt.data.images.transforms import as_floats
from selfadapt.data.sources.catalog import open_data

RADIUS = 0.1  # brings down about half of the images


def network(classes: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, classes),
    )  # fmt: skip


@cache
def _learned(classes: int) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    data = open_data("digits")
    model = network(classes).train()
    parts = []
    for samples in (data.train, data.test):
        assert samples is not None
        assert isinstance(samples.inputs, TensorImages)
        own = samples.labels < classes
        parts.append((as_floats(samples.inputs.values_NCHW[own]), samples.labels[own]))
    (images, labels), (seen, truth) = parts
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(100):
        rows = torch.randperm(len(labels), generator=torch.Generator().manual_seed(step))[:64]
        optimizer.zero_grad()
        cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()
    return model.state_dict(), seen[:200], truth[:200]


def digits_network(classes: int = 10) -> tuple[nn.Module, Tensor, Tensor]:
    """The network in evaluation mode, and 200 images (0..1) of the test part with their labels."""
    state, images, labels = _learned(classes)
    model = network(classes)
    model.load_state_dict(state)
    return model.eval(), images.clone(), labels.clone()


class Masked(nn.Module):
    """A network that sees so many steps of grey between 0 and 1, which no gradient passes."""

    def __init__(self, model: nn.Module, steps: int) -> None:
        super().__init__()
        self.model, self.steps = model, steps

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model((images * self.steps).round() / self.steps)
        return logits
