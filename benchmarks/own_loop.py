"""What `SelfAdaptiveLoss` costs in a training loop of your own, against the loss of this program's loop.

Batches of 256 logits of 10 to 10,000 classes, forward and backward, after the targets started to move and before.
Both sides share one store of 50,000 rows (5,000 at 10,000 classes). The program's side is `SelfAdaptive.loss` and the
division by the batch, as a step of the loop does it; "alone" is the loss without that division. The object also checks
the index of each batch, divides by the weights of all processes, and notes which samples it saw. A ratio is its time
over the program's: at most 1.1 is the aim.
"""

import warnings
from collections.abc import Callable
from itertools import cycle

import torch
from torch import Tensor, nn

from benchmarks.timing import time_ratio
from selfadapt import SelfAdaptiveLoss
from selfadapt.data.loader import Batch
from selfadapt.objectives.noisy_labels import SelfAdaptive
from selfadapt.objectives.objective import Progress

BATCH, EPOCHS = 256, 60


def _sides(classes: int, start_epoch: int | str) -> dict[str, Callable[[], None]]:
    """A step of each kind."""
    rows = 50_000 if classes < 10_000 else 5_000
    labels = torch.arange(rows) % classes
    criterion = SelfAdaptiveLoss(labels, epochs=EPOCHS, num_classes=classes, start_epoch=start_epoch)
    method, network, progress = criterion._method, nn.Identity(), Progress(0, 0.0, EPOCHS)
    assert isinstance(method, SelfAdaptive)
    logits = torch.randn(BATCH, classes).requires_grad_()
    batches = cycle([Batch(logits, labels[index], index) for index in torch.randperm(rows).split(BATCH)[:16]])

    def side(loss: Callable[[Batch], Tensor]) -> Callable[[], None]:
        def step() -> None:
            logits.grad = None
            loss(next(batches)).backward()

        return step

    def program(batch: Batch) -> Tensor:
        return method.loss(network, batch, criterion.targets, progress).terms[0].total

    return {
        "object": side(lambda batch: criterion(logits, batch.index)),
        "program": side(lambda batch: program(batch) / BATCH),
        "alone": side(program),
    }


def run() -> dict[str, float]:
    ratios = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no epoch ends here
        for start, phase in ((0, "targets move"), ("auto", "start not found yet")):
            for classes in (10, 100, 1_000, 10_000):
                sides = _sides(classes, start)
                for other in ("program", "alone") if start == 0 else ("program",):
                    ratio = time_ratio(sides["object"], sides[other], rounds=400 if classes < 10_000 else 100)
                    ratios[f"SelfAdaptiveLoss / {other}, {classes:,} classes, {phase}"] = ratio
    return ratios
