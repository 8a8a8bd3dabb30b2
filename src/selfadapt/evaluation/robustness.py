"""How many images a network still gets right under attack, by attack and by class.

An image's outcome is a number: 0 if the network is wrong without any attack, k if it fell to the k-th part of the
attack, STANDS if to none. Accuracies are counts of outcomes. Images not tried yet are UNTRIED, so a run that was
interrupted goes on from the outcomes that were saved.

Shapes: B images of a batch, N images, K classes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from selfadapt.attacks.attack import STANDS, WRONG, Attack
from selfadapt.attacks.masking import masking_warnings
from selfadapt.attacks.pgd import PGD
from selfadapt.core import distributed
from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.core.rng import seeded
from selfadapt.data.batch import as_input
from selfadapt.data.images.prefetch import read_batches
from selfadapt.data.inputs import Inputs
from selfadapt.models.registry import LARGE_IMAGE

UNTRIED = -1
GRADIENT_FREE = "square"  # the part of AutoAttack that only asks for answers
_TELLING = 10  # images that a single step brings down before we say that more steps should bring down more
LARGE_RADIUS = 0.5  # in the maximum norm any image can become grey, so nothing tells it from another


@dataclass(frozen=True, kw_only=True)
class Robustness:
    """The outcomes of an attack on some images, and what can be read off them."""

    parts: tuple[str, ...]
    outcome_N: Tensor
    labels_N: Tensor
    num_classes: int
    notes: tuple[str, ...] = ()

    @property
    def images(self) -> int:
        return int((self.outcome_N != UNTRIED).sum())

    @property
    def clean_accuracy(self) -> float:
        return share(self.outcome_N != WRONG, self.outcome_N != UNTRIED)

    @property
    def robust_accuracy(self) -> float:
        return share(self.outcome_N == STANDS, self.outcome_N != UNTRIED)

    def after_each_part(self) -> dict[str, float]:
        """Accuracy after each part of the attack, the parts before it included."""
        tried_N = self.outcome_N != UNTRIED
        return {part: share(self.outcome_N > k, tried_N) for k, part in enumerate(self.parts, start=1)}

    def by_class(self) -> list[tuple[int, float, float]]:
        """Images, clean and robust accuracy of each class; the accuracies are NaN for a class without images."""
        rows = []
        for k in range(self.num_classes):
            own = replace(
                self, outcome_N=self.outcome_N[self.labels_N == k], labels_N=self.labels_N[self.labels_N == k]
            )
            rows.append((own.images, own.clean_accuracy, own.robust_accuracy))
        return rows


def share(counted_N: Tensor, among_N: Tensor) -> float:
    """How many of those among which we look are counted."""
    return (counted_N & among_N).sum().item() / max(1, int(among_N.sum())) if among_N.any() else float("nan")


def spread_subset(labels_N: Tensor, count: int, seed: int = 0) -> Tensor:
    """The places of `count` images, the same each time, every class with its share (to within one image)."""
    if count < 1:
        raise UserError(f"{count} images cannot be attacked; give at least 1")
    shuffled_N = torch.randperm(len(labels_N), generator=seeded(seed, "attacked images"))
    by_class_N = shuffled_N[labels_N[shuffled_N].argsort(stable=True)]
    count = min(count, len(labels_N))
    places = (torch.arange(count, dtype=torch.float64).add_(0.5) * (len(labels_N) / count)).long()
    return by_class_N[places].sort().values


def batch_for(shape: tuple[int, ...]) -> int:
    """Images that fit into memory together with what a network keeps of them for the gradient."""
    return 16 if min(shape[1:]) >= LARGE_IMAGE else 128


def robustness(
    model: nn.Module,
    images: Inputs,
    labels_N: Tensor,
    attack: Attack,
    *,
    num_classes: int,
    device: torch.device,
    batch_size: int | None = None,
    seed: int = 0,
    outcome_N: Tensor | None = None,
    save: Callable[[Tensor], None] | None = None,
    on_progress: ProgressCallback = no_progress,
) -> Robustness:
    """Attack all images, batch by batch. The model must be in evaluation mode and take values of 0..1.

    `outcome_N` holds outcomes known from an earlier run; `save` gets all outcomes after each batch. An image that
    cannot be read stays UNTRIED. What a batch draws depends on the seed and its place, so a resumed run draws the same.
    Several processes share the batches, and all get the whole.
    """
    if any(module.training for module in model.modules()):
        raise UserError("the model is in training mode, where batch normalisation mixes the images; call model.eval()")
    if not len(labels_N):
        raise UserError("there are no images to attack")
    classes = ClassOutputs(model, num_classes).eval()
    outcome_N = torch.full((len(labels_N),), UNTRIED) if outcome_N is None else outcome_N.clone()
    if outcome_N.shape != labels_N.shape:
        raise UserError(f"{len(outcome_N)} saved outcomes do not fit {len(labels_N)} images; start anew")
    batches = [
        index_B
        for index_B in torch.arange(len(labels_N)).split(batch_size or batch_for(images.shape))
        if (outcome_N[index_B] == UNTRIED).any()
    ]
    batches = batches[distributed.rank() :: distributed.world_size()]
    done = len(labels_N) - sum(map(len, batches))
    for asked_B, read in zip(batches, read_batches(images, batches, device=device), strict=True):
        if len(read.index_B):
            generator = seeded(seed, "attack", int(asked_B[0]))
            outcome_N[read.index_B] = attack.outcome(
                classes, as_input(read.images_BCHW), labels_N[read.index_B].to(device), generator
            ).cpu()
        done += len(asked_B)
        if save is not None:
            save(outcome_N)
        on_progress(done, len(labels_N))
    return Robustness(
        parts=attack.parts,
        outcome_N=distributed.all_reduce_max(outcome_N.to(device)).cpu(),
        labels_N=labels_N,
        num_classes=num_classes,
        notes=attack.notes(num_classes),
    )


def masking_signs(
    measured: Robustness,
    few: Robustness,
    attack: Attack,
    again: Callable[[Attack], Robustness],
    *,
    pixels: int,
    transfer: float | None = None,
) -> list[str]:
    """Signs of masked gradients, whatever the attack. `few` are some of the outcomes, and `again` attacks those images.

    A single step tells nothing about gradients. `transfer` is the accuracy on `few` as moved against another network.
    """
    found = []
    if not isinstance(attack, PGD):
        found = square_warnings(measured)
    elif attack.steps > 1:
        found = gradient_warnings(few, attack, again, pixels=pixels)
    return found + masking_warnings(accuracy_by_gradient(few), transfer=transfer)


def accuracy_by_gradient(measured: Robustness) -> float:
    """What the parts of an attack that follow the gradient leave; the last part of AutoAttack needs none."""
    left = [value for part, value in measured.after_each_part().items() if part != GRADIENT_FREE]
    return left[-1] if left else measured.clean_accuracy


def square_warnings(measured: Robustness) -> list[str]:
    """Signs of masked gradients in the outcomes of AutoAttack, whose last part needs none."""
    parts = measured.after_each_part()
    if len(parts) < 2 or GRADIENT_FREE not in parts:
        return []
    return masking_warnings(accuracy_by_gradient(measured), square=parts[GRADIENT_FREE])


def gradient_warnings(
    measured: Robustness, attack: PGD, again: Callable[[Attack], Robustness], *, pixels: int
) -> list[str]:
    """Signs of masked gradients in a network under PGD. `again` attacks the same images, of so many values, otherwise.

    A robust accuracy of zero hides nothing, and nothing is tried. Under a small radius the loss is as good as linear
    and one step does all that can be done: unless some images fell to it, or a large radius fails, more steps need not
    help.
    """
    accuracy = measured.robust_accuracy
    if not accuracy:
        return []
    eps = LARGE_RADIUS * (pixels**0.5 if attack.norm == "l2" else 1)
    wide = again(replace(attack, eps=eps, step=2.5 * eps / max(1, attack.steps))).robust_accuracy
    single = again(replace(attack, steps=1, step=attack.eps))
    telling = wide > 0 or int((single.outcome_N == 1).sum()) >= _TELLING
    return masking_warnings(accuracy, one_step=single.robust_accuracy if telling else None, large_radius=wide)


class ClassOutputs(nn.Module):
    """The outputs for the classes alone: a network may have one more, for abstaining."""

    def __init__(self, model: nn.Module, num_classes: int) -> None:
        super().__init__()
        self.model = model
        self.num_classes = num_classes

    def forward(self, images_BCHW: Tensor) -> Tensor:
        outputs_BO: Tensor = self.model(images_BCHW)
        return outputs_BO[:, : self.num_classes]
