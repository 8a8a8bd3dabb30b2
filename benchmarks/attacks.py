"""What PGD-20 costs beside the forward and backward passes that it cannot do without.

A batch of 64 random images of 3×32×32, a resnet-small in evaluation mode, labels by the network itself, so no image
is left out. The bare side makes 20 forward and backward passes with gradients for the input only: the parameters
ask for none. PGD also looks at the clean images, to leave out those that are wrong, and at the moved ones, to see which
fell: two forward passes that belong to the answer, and about 2/60 of the work by themselves. "the steps alone" is the
same attack without those two looks, as training uses it.
"""

from copy import deepcopy

import torch
from torch.nn.functional import cross_entropy

from benchmarks.timing import time_ratio
from selfadapt.attacks.pgd import PGD, perturb
from selfadapt.models.heads import Classifier, Normalised
from selfadapt.models.named import backbone

BATCH, STEPS = 64, 20


def run() -> dict[str, float]:
    torch.manual_seed(0)
    network = backbone("resnet-small", channels=3, height=32, width_pixels=32)
    model = Classifier(Normalised(network, torch.full((3,), 0.5), torch.full((3,), 0.25)), 10).eval()
    bare = deepcopy(model).requires_grad_(False)
    images = torch.rand(BATCH, 3, 32, 32)
    labels = model(images).argmax(1)
    attack, generator = PGD(steps=STEPS), torch.Generator()

    def passes() -> None:
        for _ in range(STEPS):
            point = images.detach().requires_grad_()
            torch.autograd.grad(cross_entropy(bare(point), labels, reduction="sum"), point)

    def measured() -> None:
        attack.outcome(model, images, labels, generator.manual_seed(0))

    def trained() -> None:
        perturb(model, images, labels, attack, generator.manual_seed(0))

    return {
        "PGD-20 / 20 bare passes": time_ratio(measured, passes, rounds=15, warm_up=2),
        "the steps alone / 20 bare passes": time_ratio(trained, passes, rounds=15, warm_up=2),
    }
