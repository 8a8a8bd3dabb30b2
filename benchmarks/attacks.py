"""The cost of PGD-20 relative to the passes that it needs, and of self-adaptive targets relative to a step of TRADES.

A batch of 32 random images of 3×32×32, a resnet-small in evaluation mode, labels predicted by the network, so no image
is skipped. The bare side runs 20 forward and backward passes with gradients for the input only. "PGD-20" is the attack:
start, 20 steps, projections. "Robust accuracy" also predicts the clean images, to skip those that are misclassified,
and the adversarial ones, to count the errors. These two forward passes are about a twentieth of the work; if a network
misclassifies some images, skipping them saves more than that.

A training step is one of the training loop: attack, two forward passes, backward, optimiser, on the same batch. With
self-adaptive targets it also reads, moves and writes the targets of the batch and weights the cross entropy by them.
"""

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.timing import time_ratio
from selfadapt.attacks.pgd import PGD, perturb
from selfadapt.data.dataset import Samples
from selfadapt.data.images.storage import TensorImages
from selfadapt.data.inputs import InputSpec
from selfadapt.data.loader import SampleLoader
from selfadapt.engine.fit import FitSettings, Training
from selfadapt.models.backbone import Backbone, Normalised
from selfadapt.models.heads import Classifier
from selfadapt.models.registry import backbone
from selfadapt.objectives.adversarial import Trades, TradesSelfAdaptive
from selfadapt.targets.store import Storage

CPU = torch.device("cpu")
BATCH, STEPS, ROUNDS = 32, 20, 40


def _network() -> Backbone:
    return backbone("resnet-small", InputSpec.of((3, 32, 32)))


def run() -> dict[str, float]:
    torch.manual_seed(0)
    model = Classifier(Normalised(_network(), torch.full((3,), 0.5), torch.full((3,), 0.25)), 10).eval()
    bare = deepcopy(model).requires_grad_(False)
    images = torch.rand(BATCH, 3, 32, 32)
    labels = model(images).argmax(1)
    attack, generator = PGD(steps=STEPS), torch.Generator()

    def passes() -> None:
        for _ in range(STEPS):
            point = images.detach().requires_grad_()
            torch.autograd.grad(cross_entropy(bare(point), labels, reduction="sum"), point)

    def counted() -> None:
        attack.outcome(model, images, labels, generator.manual_seed(0))

    def moved() -> None:
        perturb(model, images, labels, attack, generator.manual_seed(0))

    trades, adaptive = (_steps(method, images, labels) for method in (Trades(), TradesSelfAdaptive(start_epoch=0)))
    return {
        "trades-sat step / trades step": time_ratio(adaptive, trades, rounds=ROUNDS),
        "PGD-20 / 20 bare passes": time_ratio(moved, passes, rounds=ROUNDS),
        "robust accuracy under PGD-20 / 20 bare passes": time_ratio(counted, passes, rounds=ROUNDS),
    }


def _steps(method: Trades, images: Tensor, labels: Tensor) -> Callable[[], object]:
    """A function that repeats one step of this method on the same batch."""
    torch.manual_seed(0)
    pixels = TensorImages((images * 255).to(torch.uint8))
    samples = Samples(inputs=pixels, labels=labels, truth=None, ids=[str(i) for i in range(BATCH)])
    training = Training(
        method,
        method.build(Normalised(_network(), torch.full((3,), 0.5), torch.full((3,), 0.25)), 10),
        method.initial_targets(labels, 10, Storage()),
        SampleLoader(samples, batch_size=BATCH, seed=0, device=CPU),
        FitSettings(epochs=1),
        num_classes=10,
        device=CPU,
    )
    batch = next(iter(training.loader.epoch(0)))
    training.model.train()
    return lambda: training.take_step(batch)
