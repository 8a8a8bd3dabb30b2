"""What the loss of self-adaptive training costs by itself: targets moved, loss, and the slope by the logits.

Batches of 256 logits of 10 to 10,000 classes, a store of 50,000 rows (5,000 at 10,000 classes), forward and backward.
"plain" is the same formula as one writes it down: every use of the targets indexes the table anew, and softmax and
log_softmax are taken apart. "cross entropy" is torch's own with labels, which has no targets at all. A ratio above
one in the first rows is a gain; the last rows say how many times torch's cross entropy it takes.
"""

from collections.abc import Callable
from itertools import cycle

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from benchmarks.timing import time_ratio
from selfadapt.data.loader import Batch
from selfadapt.objectives.noisy_labels import NoisyLabels
from selfadapt.objectives.objective import Progress
from selfadapt.targets.store import TargetStore

BATCH = 256
ALPHA = 0.9


def _plain(logits: Tensor, index: Tensor, table: Tensor) -> Tensor:
    prediction = logits.softmax(1).detach()
    table[index] = ALPHA * table[index] + (1 - ALPHA) * prediction
    weight = table[index].max(1, keepdim=True).values
    return -(weight * table[index] * logits.log_softmax(1)).sum() / table[index].max(1).values.sum()


def _sides(classes: int) -> tuple[Callable[[], None], Callable[[], None], Callable[[], None]]:
    """A step of ours, of the plain formula and of torch's cross entropy."""
    rows = 50_000 if classes < 10_000 else 5_000
    labels = torch.randint(classes, (rows,))
    table = one_hot(labels, classes).float()
    store = TargetStore.from_labels(labels, classes, ALPHA)
    logits = torch.randn(BATCH, classes).requires_grad_()
    indexes = [torch.randperm(rows)[:BATCH] for _ in range(16)]
    batches = cycle([Batch(logits, labels[index], index) for index in indexes])
    objective, progress, model = NoisyLabels(start_epoch=0, momentum=ALPHA), Progress(0, 0.0), torch.nn.Identity()

    def side(loss: Callable[[Batch], Tensor]) -> Callable[[], None]:
        def step() -> None:
            logits.grad = None
            loss(next(batches)).backward()

        return step

    ours = side(lambda batch: objective.loss(model, batch, store, progress).total)
    plain = side(lambda batch: _plain(logits, batch.index, table))
    return ours, plain, side(lambda batch: cross_entropy(logits, batch.label))


def run() -> dict[str, float]:
    gains, costs = {}, {}
    for classes in (10, 100, 1_000, 10_000):
        ours, plain, labelled = _sides(classes)
        rounds = 200 if classes < 10_000 else 60
        gains[f"plain / ours, {classes:,} classes"] = time_ratio(plain, ours, rounds=rounds)
        costs[f"ours / cross entropy, {classes:,} classes"] = time_ratio(ours, labelled, rounds=rounds)
    return gains | costs
