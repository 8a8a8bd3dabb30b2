"""Robust accuracy by attack and by class, and signs of gradient masking.

The outcome of an image is a number: MISCLASSIFIED without a perturbation, k if the k-th part of the attack fools the
network, or ROBUST (attacks/attack.py). Accuracies are counts of outcomes. Images that were not attacked yet are
UNTRIED, so an interrupted evaluation resumes from saved outcomes.

Shapes: B images of a batch, N images, K classes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor, nn

from selfadapt.attacks.attack import MISCLASSIFIED, ROBUST, Attack
from selfadapt.attacks.masking import masking_warnings
from selfadapt.attacks.pgd import PGD
from selfadapt.core import distributed
from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.core.rng import seeded
from selfadapt.data.images.prefetch import read_batches
from selfadapt.data.images.transforms import as_floats
from selfadapt.data.inputs import Inputs
from selfadapt.models.registry import LARGE_IMAGE

UNTRIED = -1
GRADIENT_FREE = "square"  # the part of AutoAttack that needs no gradients
_MIN_FOOLED = 10  # images that a single step must fool before more steps are expected to fool more
LARGE_RADIUS = 0.5  # in the maximum norm: any image can become grey


@dataclass(frozen=True, kw_only=True)
class Robustness:
    """The outcomes of an attack on some images."""

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
        return share(self.outcome_N != MISCLASSIFIED, self.outcome_N != UNTRIED)

    @property
    def robust_accuracy(self) -> float:
        return share(self.outcome_N == ROBUST, self.outcome_N != UNTRIED)

    def after_each_part(self) -> dict[str, float]:
        """Return the accuracy after each part of the attack, cumulatively."""
        tried_N = self.outcome_N != UNTRIED
        return {part: share(self.outcome_N > k, tried_N) for k, part in enumerate(self.parts, start=1)}

    def by_class(self) -> list[tuple[int, float, float]]:
        """Return number of images, clean and robust accuracy of each class; NaN for a class without images."""
        rows = []
        for k in range(self.num_classes):
            of_class = replace(self, outcome_N=self.outcome_N[self.labels_N == k])
            rows.append((of_class.images, of_class.clean_accuracy, of_class.robust_accuracy))
        return rows


def share(counted_N: Tensor, among_N: Tensor) -> float:
    """Return the share of `among_N` that is counted; NaN if there are none."""
    return (counted_N & among_N).sum().item() / int(among_N.sum()) if among_N.any() else float("nan")


def stratified_subset(labels_N: Tensor, count: int, seed: int = 0) -> Tensor:
    """Return the indices of a fixed, stratified random subset of `count` images (to within one image per class)."""
    if count < 1:
        raise UserError(f"{count} images cannot be attacked; give at least 1")
    shuffled_N = torch.randperm(len(labels_N), generator=seeded(seed, "attacked images"))
    by_class_N = shuffled_N[labels_N[shuffled_N].argsort(stable=True)]
    count = min(count, len(labels_N))
    positions = (torch.arange(count, dtype=torch.float64).add_(0.5) * (len(labels_N) / count)).long()
    return by_class_N[positions].sort().values


def attack_batch_size(shape: tuple[int, ...]) -> int:
    """Return the batch size that fits into memory with the activations for the gradient."""
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
    """Attack all images, batch by batch. Several processes share the batches, and all get the whole result.

    Args:
        model: Network in evaluation mode, for images within 0..1.
        images: Images; unreadable ones stay UNTRIED.
        labels_N: Correct classes.
        attack: The attack.
        num_classes: Number of class outputs; further outputs of the model are ignored.
        device: Device of the model.
        batch_size: Images per batch; chosen by their size if None.
        seed: Seed of the attack. The draws of a batch depend on the seed and its position only.
        outcome_N: Outcomes from an interrupted evaluation.
        save: Called with all outcomes after each batch.
        on_progress: Called with the number of finished images and the total.

    Raises:
        UserError: If the model is in training mode, or there is nothing to attack.
    """
    if any(module.training for module in model.modules()):
        raise UserError("the model is in training mode, where batch normalisation mixes the images; call model.eval()")
    if not len(labels_N):
        raise UserError("no images to attack")
    classes = ClassOutputs(model, num_classes).eval()
    outcome_N = torch.full((len(labels_N),), UNTRIED) if outcome_N is None else outcome_N.clone()
    if outcome_N.shape != labels_N.shape:
        raise UserError(f"{len(outcome_N)} saved outcomes do not match {len(labels_N)} images; start again")
    outcome_N = distributed.all_reduce_max(outcome_N.to(device)).cpu()  # one may have read an older file
    batches = [
        index_B
        for index_B in torch.arange(len(labels_N)).split(batch_size or attack_batch_size(images.shape))
        if (outcome_N[index_B] == UNTRIED).any()
    ]
    done, world_size = len(labels_N) - sum(map(len, batches)), distributed.world_size()
    rounds = [batches[start : start + world_size] for start in range(0, len(batches), world_size)]
    own = batches[distributed.rank() :: world_size]
    reads = zip(own, read_batches(images, own, device=device), strict=True)
    for batches_of_all in rounds:
        for index_B, read in islice(reads, 1):
            if len(read.index_B):
                generator = seeded(seed, "attack", int(index_B[0]))
                outcome_N[read.index_B] = attack.outcome(
                    classes, as_floats(read.images_BCHW), labels_N[read.index_B].to(device), generator
                ).cpu()
        outcome_N = distributed.all_reduce_max(outcome_N.to(device)).cpu()
        done += sum(map(len, batches_of_all))
        if save is not None:
            save(outcome_N)
        on_progress(done, len(labels_N))
    return Robustness(
        parts=attack.parts,
        outcome_N=outcome_N,
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
    """Return signs of gradient masking, for any attack.

    Args:
        measured: Outcomes of the attack.
        few: Outcomes on a subset of the images.
        attack: The attack.
        again: Runs another attack on the subset.
        pixels: Number of values of an image.
        transfer: Accuracy on the subset under a transfer attack.
    """
    parts = measured.after_each_part()
    square = parts.get(GRADIENT_FREE) if len(parts) > 1 else None
    warnings = masking_warnings(accuracy_by_gradient(measured), square=square)
    if isinstance(attack, PGD) and attack.steps > 1:  # a single step says nothing about masking
        warnings += gradient_warnings(few, attack, again, pixels=pixels)
    return warnings + masking_warnings(accuracy_by_gradient(few), transfer=transfer)


def accuracy_by_gradient(measured: Robustness) -> float:
    """Return the accuracy under the gradient-based parts of an attack."""
    accuracies = [value for part, value in measured.after_each_part().items() if part != GRADIENT_FREE]
    return accuracies[-1] if accuracies else measured.clean_accuracy


def gradient_warnings(
    measured: Robustness, attack: PGD, again: Callable[[Attack], Robustness], *, pixels: int
) -> list[str]:
    """Return signs of masking under PGD. `again` runs another attack on the same images, which have `pixels` values.

    A robust accuracy of zero needs no check. Under a small radius the loss is nearly linear, and one step is as strong
    as many: more steps are expected to help only if one step fools some images or a large radius fails.
    """
    accuracy = measured.robust_accuracy
    if not accuracy:
        return []
    eps = LARGE_RADIUS * (pixels**0.5 if attack.norm == "l2" else 1)
    wide = again(replace(attack, eps=eps, step=2.5 * eps / max(1, attack.steps))).robust_accuracy
    single = again(replace(attack, steps=1, step=attack.eps))
    comparable = wide > 0 or int((single.outcome_N == 1).sum()) >= _MIN_FOOLED
    return masking_warnings(accuracy, one_step=single.robust_accuracy if comparable else None, large_radius=wide)


class ClassOutputs(nn.Module):
    """Drops outputs that are not classes, such as one for abstaining."""

    def __init__(self, model: nn.Module, num_classes: int) -> None:
        super().__init__()
        self.model = model
        self.num_classes = num_classes

    def forward(self, images_BCHW: Tensor) -> Tensor:
        outputs_BO: Tensor = self.model(images_BCHW)
        return outputs_BO[:, : self.num_classes]
