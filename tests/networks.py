"""Networks for tests, and a small training of one."""

import torch
from torch import Tensor, nn

from selfadapt import Storage
from selfadapt.data.dataset import Samples
from selfadapt.data.loader import SampleLoader
from selfadapt.engine.fit import FitSettings, Training
from selfadapt.engine.optim import OptimizerSettings
from selfadapt.models.backbone import Backbone
from selfadapt.models.backbones.mlp import MLP
from selfadapt.objectives.objective import Objective


class Smooth(Backbone):
    """Without batch normalisation, so that a part of a batch sees what the whole would."""

    num_features = 8

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 8)

    def forward(self, images: Tensor) -> Tensor:
        return torch.tanh(self.layer(images.flatten(1)))


def small_training(
    objective: Objective, samples: Samples, epochs: int, *, width: int = 12, batch_size: int = 16, lr: float = 0.05
) -> Training:
    """A perceptron on these samples, from the same weights each time."""
    torch.manual_seed(0)
    cpu = torch.device("cpu")
    channels, height, columns = samples.inputs.shape
    classes = int(samples.labels.max()) + 1
    return Training(
        objective,
        objective.build(MLP(channels * height * columns, width=width), classes),
        objective.initial_targets(samples.labels, classes, Storage()),
        SampleLoader(samples, batch_size=batch_size, seed=0, device=cpu),
        FitSettings(epochs=epochs, optimizer=OptimizerSettings(lr=lr)),
        num_classes=classes,
        device=cpu,
    )
