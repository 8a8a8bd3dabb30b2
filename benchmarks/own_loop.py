"""What `SelfAdaptiveLoss` costs in a training loop of your own, against the loss of this program's loop.

Batches of 256 logits of 10 to 10,000 classes, forward and backward, after the targets started to move and before.
Both sides share one store of 50,000 rows (5,000 at 10,000 classes). "program" is what a step of the loop does:
`SelfAdaptive.loss`, the division by the batch, and the sums of what it measured; "alone" is `SelfAdaptive.loss` without
the rest. The object also checks the index of each batch, divides by the weights of all processes, and notes which
samples it saw. A ratio is its time over the program's: at most 1.1 is the aim.
"""

import warnings
from collections.abc import Callable
from itertools import cycle

import torch
from torch import Tensor, nn

from benchmarks.timing import time_ratio
from selfadapt import SelfAdaptiveLoss
from selfadapt.data.batch import Batch
from selfadapt.engine.accumulator import Accumulator
from selfadapt.objectives.noisy_labels import SelfAdaptive
from selfadapt.objectives.objective import Progress

BATCH, EPOCHS = 256, 60
CLASSES = (10, 100, 1_000, 10_000)


def _sides(classes: int, start_epoch: int | str) -> dict[str, Callable[[], None]]:
    """A step of each kind."""
    rows = 50_000 if classes < 10_000 else 5_000
    labels = torch.arange(rows) % classes
    criterion = SelfAdaptiveLoss(labels, epochs=EPOCHS, num_classes=classes, start_epoch=start_epoch)
    method, network, progress = criterion._method, nn.Identity(), Progress(0, 0.0, EPOCHS)
    accumulator = Accumulator(0, torch.device("cpu"))
    assert isinstance(method, SelfAdaptive)
    logits = torch.randn(BATCH, classes).requires_grad_()
    batches = cycle([Batch(logits, labels[index], index) for index in torch.randperm(rows).split(BATCH)[:16]])

    def side(loss: Callable[[Batch], Tensor]) -> Callable[[], None]:
        def step() -> None:
            logits.grad = None
            loss(next(batches)).backward()

        return step

    def program(batch: Batch) -> Tensor:
        loss = method.loss(network, batch, criterion.targets, progress)
        for name, values in loss.measured.items():
            accumulator.measure(name, values)
        return loss.terms[0].total / BATCH

    def alone(batch: Batch) -> Tensor:
        return method.loss(network, batch, criterion.targets, progress).terms[0].total

    return {
        "object": side(lambda batch: criterion(logits, batch.index)),
        "program": side(program),
        "alone": side(alone),
    }


def run() -> dict[str, float]:
    ratios = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no epoch ends here
        for start, phase in ((0, "targets move"), ("auto", "start not found yet")):
            for classes in CLASSES:
                sides = _sides(classes, start)
                for other in ("program", "alone") if start == 0 else ("program",):
                    ratio = time_ratio(sides["object"], sides[other], rounds=400)
                    ratios[f"SelfAdaptiveLoss / {other}, {classes:,} classes, {phase}"] = ratio
    return ratios
