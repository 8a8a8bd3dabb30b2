"""A LightningModule as people have one, which knows nothing about self-adaptive training."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.nn.functional import cross_entropy

from integrations.digits_problem import EPOCHS, network, optimizer_of


class DigitsModule(LightningModule):  # type: ignore[misc]
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.net = network(seed)

    def forward(self, images: Tensor) -> Any:
        return self.net(images)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        images, labels = batch
        return cross_entropy(self(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return optimizer_of(self)


def trainer(folder: Path, *, max_epochs: int = EPOCHS, **settings: Any) -> Any:
    """A quiet trainer on the CPU."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    settings = {"devices": 1, "enable_checkpointing": False, **quiet, **settings}
    return Trainer(max_epochs=max_epochs, default_root_dir=folder, **settings)
