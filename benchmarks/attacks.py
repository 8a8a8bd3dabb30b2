"""What PGD-20 costs beside the forward and backward passes that it cannot do without.

A batch of 32 random images of 3×32×32, a resnet-small in evaluation mode, labels by the network itself, so no image is
left out. The bare side makes 20 forward and backward passes with gradients for the input only: the parameters ask for
none. "PGD-20" is the attack: start, 20 steps, projections. "Robust accuracy" also looks at the clean images, to leave
out those that are wrong, and at the moved ones, to see which fell. These two forward passes are about a twentieth of
the work by themselves; where a network is wrong on some images it saves more than that.
"""

from copy import deepcopy

import torch
from torch.nn.functional import cross_entropy

from benchmarks.timing import time_ratio
from selfadapt.attacks.pgd import PGD, perturb
from selfadapt.data.inputs import InputSpec
from selfadapt.models.heads import Classifier, Normalised
from selfadapt.models.named import backbone

BATCH, STEPS, ROUNDS = 32, 20, 40


def run() -> dict[str, float]:
    torch.manual_seed(0)
    network = backbone("resnet-small", InputSpec.of((3, 32, 32)))
    model = Classifier(Normalised(network, torch.full((3,), 0.5), torch.full((3,), 0.25)), 10).eval()
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

    return {
        "PGD-20 / 20 bare passes": time_ratio(moved, passes, rounds=ROUNDS),
        "robust accuracy under PGD-20 / 20 bare passes": time_ratio(counted, passes, rounds=ROUNDS),
    }
