"""The saving of one view: a step of one-view self-adaptive training against one of two-view BYOL (Figure 9).

The same batch of 128 CIFAR-sized images, augmentation, network (small ResNet, heads of 512 and 256) and optimiser; a
step is augmentation, forward and loss, backward and update, and each is also timed separately. `selfadapt reproduce
fig9` has all four methods of the figure.
"""

from typing import Any

import torch

from selfadapt.data.dataset import Samples
from selfadapt.data.images.augment import augmentation_by_name
from selfadapt.data.images.storage import TensorImages
from selfadapt.data.inputs import InputSpec
from selfadapt.data.loader import SampleLoader
from selfadapt.engine.fit import FitSettings, Training
from selfadapt.engine.phases import median_ratio, time_side_by_side
from selfadapt.models.backbone import Normalised
from selfadapt.models.registry import backbone
from selfadapt.objectives.pretraining.byol import BYOL
from selfadapt.objectives.pretraining.encoders import Pretraining
from selfadapt.objectives.pretraining.self_supervised import SelfSupervised
from selfadapt.targets.store import Storage

IMAGES, BATCH = 1024, 128


def _training(objective: Pretraining, views: int) -> Training:
    cpu = torch.device("cpu")
    images = torch.randint(0, 256, (IMAGES, 3, 32, 32), dtype=torch.uint8)
    samples = Samples(
        inputs=TensorImages(images), labels=torch.zeros(IMAGES).long(), truth=None, ids=[str(i) for i in range(IMAGES)]
    )
    network = backbone("resnet-small", InputSpec("images", (3, 32, 32)))
    model = objective.build(Normalised(network, torch.full((3,), 0.5), torch.full((3,), 0.25)), 1)
    augment = augmentation_by_name("self-supervised", 32)
    loader = SampleLoader(samples, batch_size=BATCH, seed=0, device=cpu, augment=augment, views=views)
    targets = objective.initial_targets(samples.labels, 1, Storage())
    return Training(objective, model, targets, loader, FitSettings(), num_classes=1, device=cpu)


def run() -> dict[str, float]:
    heads: dict[str, Any] = {"hidden": 512, "dimensions": 256}
    sides = {"one": _training(SelfSupervised(**heads), 1), "two": _training(BYOL(**heads), 2)}
    turns = time_side_by_side(sides, turns=26, steps=1, warm_up=1)
    return {
        f"{words}, one-view SAT / two-view BYOL": median_ratio(turns["one"], turns["two"], phase)
        for words, phase in (
            ("whole step", "whole"),
            ("augmentation", "data"),
            ("forward", "forward"),
            ("backward and update", "backward"),
        )
    }
