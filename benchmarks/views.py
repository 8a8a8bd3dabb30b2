"""What one view saves: a step of one-view self-adaptive training against one of two-view BYOL (the paper's Figure 9).

The same batch of 128 CIFAR-sized images, augmentation, network (small ResNet, heads of 512 and 256) and optimiser; a
step is augmentation, forward and loss, backward and update, and each is also timed apart.
"""

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.timing import time_ratio
from selfadapt.data.augment import named_augment
from selfadapt.data.images import TensorImages
from selfadapt.data.inputs import InputSpec
from selfadapt.data.loader import Batch, SampleLoader
from selfadapt.data.samples import Samples
from selfadapt.engine.fit import FitSettings, Training
from selfadapt.models.heads import Normalised
from selfadapt.models.named import backbone
from selfadapt.objectives.pretraining.byol import BYOL
from selfadapt.objectives.pretraining.encoders import Pretraining
from selfadapt.objectives.pretraining.self_supervised import SelfSupervised
from selfadapt.targets.store import Storage

IMAGES, BATCH = 1024, 128


class _Side:
    def __init__(self, objective: Pretraining, views: int) -> None:
        images = torch.randint(0, 256, (IMAGES, 3, 32, 32), dtype=torch.uint8)
        samples = Samples(
            inputs=TensorImages(images),
            labels=torch.zeros(IMAGES).long(),
            truth=None,
            ids=[str(i) for i in range(IMAGES)],
        )
        network = backbone("resnet-small", InputSpec("image", (3, 32, 32)))
        model = objective.build(Normalised(network, torch.full((3,), 0.5), torch.full((3,), 0.25)), 1)
        loader = SampleLoader(
            samples, batch_size=BATCH, seed=0, device=torch.device("cpu"),
            augment=named_augment("self-supervised", 32), views=views,
        )  # fmt: skip
        targets = objective.initial_targets(samples.labels, 1, Storage())
        self.training = Training(
            objective, model, targets, loader, FitSettings(), num_classes=1, device=torch.device("cpu")
        )
        self.batches = self._for_ever()
        self.batch = next(self.batches)

    def _for_ever(self) -> Iterator[Batch]:
        epoch = 0
        while True:
            yield from self.training.loader.epoch(epoch)
            epoch += 1

    def data(self) -> None:
        self.batch = next(self.batches)

    def forward(self) -> None:
        training = self.training
        self.loss = training.objective.loss(training.model, self.batch, training.targets, training.progress)

    def backward(self) -> None:
        training = self.training
        self.loss.terms[0].total.backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        training.objective.after_step(training.model, training.progress)

    def step(self) -> None:
        self.data()
        self.training.take_step(self.batch)


def run() -> dict[str, float]:
    heads: dict[str, Any] = {"hidden": 512, "dimensions": 256}
    one, two = _Side(SelfSupervised(**heads), 1), _Side(BYOL(**heads), 2)
    ratios = {}
    for words, name in (
        ("whole step", "step"),
        ("augmentation", "data"),
        ("forward", "forward"),
        ("backward and update", "backward"),
    ):
        ratios[f"{words}, one-view SAT / two-view BYOL"] = time_ratio(
            getattr(one, name),
            getattr(two, name),
            rounds=24,
            warm_up=2,
            prepare=(one.forward, two.forward) if name == "backward" else None,
        )
    return ratios
