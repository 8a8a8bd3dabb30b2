"""The cost of the self-adaptive loss alone: moving the targets, the loss, and its gradient with respect to the logits.

Batches of 256 logits of 10 to 10,000 classes, a store of 50,000 rows (5,000 at 10,000 classes), forward and backward.
"plain" is a direct implementation of the formula: every use of the targets indexes the table again, and softmax and
log_softmax are computed separately. "ours" is the loss of the training loop; "your own loop" is `TargetStore.update`
with `self_adaptive_cross_entropy`, which validates the index and the prediction of every batch and computes the softmax
twice. "cross entropy" is that of torch with labels and without targets. A ratio above one in the first rows is a gain;
the last rows are relative to the cross entropy of torch.
"""

from collections.abc import Callable
from itertools import cycle

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from benchmarks.timing import time_ratio
from selfadapt.data.batch import Batch
from selfadapt.objectives.self_adaptive_loss import self_adaptive_cross_entropy, update_and_loss
from selfadapt.targets.store import TargetStore

BATCH = 256
ALPHA = 0.9


def _plain(logits: Tensor, index: Tensor, table: Tensor) -> Tensor:
    prediction = logits.softmax(1).detach()
    table[index] = ALPHA * table[index] + (1 - ALPHA) * prediction
    weight = table[index].max(1, keepdim=True).values
    return -(weight * table[index] * logits.log_softmax(1)).sum() / table[index].max(1).values.sum()


def _sides(classes: int) -> dict[str, Callable[[], None]]:
    """A step of each kind."""
    rows = 50_000 if classes < 10_000 else 5_000
    labels = torch.randint(classes, (rows,))
    table = one_hot(labels, classes).float()
    store = TargetStore.from_labels(labels, classes, ALPHA)
    logits = torch.randn(BATCH, classes).requires_grad_()
    indexes = [torch.randperm(rows)[:BATCH] for _ in range(16)]
    batches = cycle([Batch(logits, labels[index], index) for index in indexes])

    def side(loss: Callable[[Batch], Tensor]) -> Callable[[], None]:
        def step() -> None:
            logits.grad = None
            loss(next(batches)).backward()

        return step

    def in_own_loop(batch: Batch) -> Tensor:
        return self_adaptive_cross_entropy(logits, store.update(batch.index, logits.softmax(1)))

    return {
        "ours": side(lambda batch: update_and_loss(logits, store, batch.index, None, reweight=True).terms[0].total),
        "your own loop": side(in_own_loop),
        "plain": side(lambda batch: _plain(logits, batch.index, table)),
        "cross entropy": side(lambda batch: cross_entropy(logits, batch.label)),
    }


def run() -> dict[str, float]:
    pairs = (("plain", "ours"), ("plain", "your own loop"), ("ours", "cross entropy"))
    ratios: dict[tuple[str, str], dict[str, float]] = {pair: {} for pair in pairs}
    for classes in (10, 100, 1_000, 10_000):
        sides = _sides(classes)
        for (above, below), found in ratios.items():
            name = f"{above} / {below}, {classes:,} classes"
            found[name] = time_ratio(sides[above], sides[below], rounds=200 if classes < 10_000 else 60)
    return {name: ratio for found in ratios.values() for name, ratio in found.items()}
