"""Cross-fitting: out-of-sample predictions for every sample, and how labels go wrong, without a single true label.

Two predictors that err in different ways are fitted by the same folds, each to targets that self-adaptive training
moved (nested_heads.py):

    heads          softmax regression on the features, by nested folds
    discriminant   a linear discriminant on the axes of a Gaussian kernel, in closed form (discriminant.py)

and their mean is taken, with the weights under which the labels are likeliest. Targets are moved twice. First under
class-dependent noise, as the inner heads see it. Then, where the noise that the mean of all predictors shows clearly
explains held-out labels better than symmetric noise does (noise_model.py), by that noise; else by symmetric noise, and V
is used for P(wrong) only. Where samples are few, several assignments to folds are averaged, and some of them select the
noise model.

A prediction that knows nothing of its sample's label stays the same whatever that label is, up to a handful of numbers
(decay, shrinkage, kernel, weights, temperature) that all labels together choose. Validation and test samples are judged
by a last head, fitted to the targets of all training samples.

Shapes: N samples, R assignments to folds, F features, D axes, K classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from selfadapt.core.progress import ProgressCallback, no_progress
from selfadapt.core.rng import seeded
from selfadapt.data.splits import assign_folds, content_keys
from selfadapt.models.linear.discriminant import FoldSums, held_out_discriminant
from selfadapt.models.linear.kernel_axes import KernelAxes, candidates
from selfadapt.models.linear.softmax_regression import PrincipalAxes
from selfadapt.objectives.cross_fitting.nested_heads import CrossFitting, MovedHeads, NestedHeads, fit_head, one_hot
from selfadapt.objectives.cross_fitting.noise_model import (
    NoiseModel,
    class_noise,
    mean_by_class_likelihood,
    mean_by_likelihood,
    mean_of,
    noise_of_mean,
    prefers_classes,
)
from selfadapt.objectives.cross_fitting.transition import (
    Transition,
    UpdateTransition,
    posterior,
    update_symmetric,
    update_transition,
)

FOLDS = 5
LEAST_SAMPLES = 10
LEAST_TO_JUDGE = 5  # samples of a class, for its labels to be judged
_LARGEST = 1e15  # feature, whose square float32 can still sum
_KEPT_AGREEMENT = 0.85  # of held-out predictions with labels, when targets have moved, as a share of that before
_ROUNDS_OF_MEAN = 3  # of EM, a few steps each
_SYMMETRIC_ROUNDS = 4  # one rate settles sooner than V
_KERNEL_SAMPLES, _KERNEL_LANDMARKS = 1200, 300  # by which the kernel is chosen
_DECIDING = 4  # one in so many assignments serves to choose the kind of noise
_ASSIGNMENTS = ((400, 4), (3000, 3), (6000, 2))  # to folds that are averaged, up to so many samples


@dataclass(frozen=True)
class CrossFitted:
    """What cross-fitting found. Every row of `predicted_NK` comes from fits that know nothing of that label."""

    predicted_NK: Tensor  # q, at the temperature of the noise model
    plain_NK: Tensor  # by heads fitted to the labels as they are
    noise: NoiseModel
    fold_N: Tensor
    decay: float
    plain_decay: float
    features_NF: Tensor
    labels_N: Tensor
    axes: PrincipalAxes

    @cached_property
    def head_DK(self) -> Tensor:
        """Fitted to the targets of all samples, for samples that had no part in it."""
        targets_NK = posterior(self.predicted_NK, self.labels_N, self.noise.matrix_KK)
        return fit_head(self.axes(self.features_NF), targets_NK, self.decay)

    @cached_property
    def plain_head_DK(self) -> Tensor:
        """Fitted to the labels as they are."""
        labels_NK = one_hot(self.labels_N, self.predicted_NK.shape[1])
        return fit_head(self.axes(self.features_NF), labels_NK, self.plain_decay)

    def predict(self, features_NF: Tensor) -> Tensor:
        """q of samples that had no part in this."""
        return (self.axes(features_NF) @ self.head_DK).softmax(1)


def check_enough(labels_N: Tensor) -> None:
    """A ValueError if no label could be judged."""
    if len(labels_N) < LEAST_SAMPLES:
        raise ValueError(f"{len(labels_N)} samples are too few to judge labels; pass at least {LEAST_SAMPLES}")
    if torch.bincount(labels_N).max() < LEAST_TO_JUDGE:
        raise ValueError(f"no class has {LEAST_TO_JUDGE} samples, so none can be judged; are these labels, not ids?")


def check_spread(labels_N: Tensor, fold_N: Tensor, names: Sequence[str] | None = None) -> None:
    """A ValueError if all samples of a class share a fold: heads that never saw the class would judge them.

    Where classes have enough samples to be judged, that is because all of one belong together.
    """
    for label, count in enumerate(torch.bincount(labels_N).tolist()):
        if count >= LEAST_TO_JUDGE and len(fold_N[labels_N == label].unique()) == 1:
            name = f"number {label} (from 0)" if names is None else repr(names[label])
            raise ValueError(
                f"all {count} samples of the class {name} belong together, by their group or as duplicates, so no "
                "other sample shows what the class is; give groups that run across classes, or leave the class out"
            )


def check_features(features_NF: Tensor) -> None:
    """A ValueError if no head could be fitted to them."""
    if bool((features_NF == features_NF[:1]).all()):
        raise ValueError("features are the same for every sample, so they tell nothing")
    largest = float(features_NF.abs().max())
    if not 1 / _LARGEST < largest < _LARGEST:
        raise ValueError(f"features are of a size ({largest:.0e}) that float32 cannot compute with; bring them near 1")


def deal_assignments(
    features_NF: Tensor, labels_N: Tensor, seed: int, groups_N: Tensor | None = None, folds: int = FOLDS
) -> Tensor:
    """Assignments to folds (R×N), several where samples are few. They do not depend on the order of the samples."""
    count = next((count for most, count in _ASSIGNMENTS if len(labels_N) <= most), 1)
    keys_N = content_keys(features_NF)
    assignments = [assign_folds(labels_N, folds, seed + 7919 * r, groups_N, keys_N) for r in range(count)]
    return torch.stack(assignments)


def cross_fit(
    features_NF: Tensor,
    labels_N: Tensor,
    fold_RN: Tensor,
    num_classes: int,
    settings: CrossFitting | None = None,
    on_progress: ProgressCallback = no_progress,
) -> CrossFitted:
    """Cross-fit to these samples. `fold_RN` holds the folds 0, 1, … (at least three), of one or more assignments."""
    fold_RN, features_NF = fold_RN.view(-1, len(labels_N)), features_NF.float()
    stages = 2 * len(fold_RN) + 1
    axes = PrincipalAxes.of(features_NF)
    kernel_ND = best_kernel(features_NF, labels_N, fold_RN[0], num_classes)(features_NF)
    assignments = []
    for fold_N in fold_RN:
        heads = NestedHeads(features_NF, labels_N, fold_N, num_classes, settings, axes)
        assignments.append(_Assignment(heads, FoldSums.of(kernel_ND, fold_N), labels_N, num_classes))
        on_progress(len(assignments), stages)
    mixed_NK, noise = _mixed(assignments, labels_N, lambda done: on_progress(len(fold_RN) + done, stages))
    first = assignments[0]
    on_progress(stages, stages)
    return CrossFitted(
        predicted_NK=noise.sharpened(mixed_NK),
        plain_NK=mean_of([own.heads.plain_NK for own in assignments]),
        noise=noise,
        fold_N=fold_RN[0],
        decay=first.moved.decay,
        plain_decay=first.heads.plain_decay,
        features_NF=features_NF,
        labels_N=labels_N,
        axes=axes,
    )


class _Assignment:
    """Both predictors by one assignment to folds: fitted to the labels, and to moved targets once `move` was called."""

    moved: MovedHeads

    def __init__(self, heads: NestedHeads, sums: FoldSums, labels_N: Tensor, num_classes: int) -> None:
        self.heads, self.sums = heads, sums
        labels_N1K = one_hot(labels_N, num_classes).unsqueeze(1)
        self.discriminant_NK = held_out_discriminant(sums, labels_N1K).log_NK.exp()

    def move(self, update: UpdateTransition, most: int | None = None) -> None:
        """Targets moved under this noise. Where samples are many those moved before do as well."""
        if not (self.heads.large and hasattr(self, "moved")):
            self.moved = self.heads.moved(update, no_progress, most)

    def moved_discriminant(self) -> Tensor:
        return held_out_discriminant(self.sums, self.moved.targets_NFK).log_NK.exp()


def _mixed(
    assignments: Sequence[_Assignment], labels_N: Tensor, on_progress: Callable[[int], None]
) -> tuple[Tensor, NoiseModel]:
    """The mean of all predictors, over all assignments, and the noise model that goes with it."""
    fold_N, deciding = assignments[0].sums.fold_N, assignments[: max(1, len(assignments) // _DECIDING)]
    plain_NK = mean_of([own.heads.plain_NK for own in assignments])
    for own in deciding:
        own.move(update_transition)
    heads_NK, moved_NK = _moved_predictions(deciding)
    if keeps_to(labels_N, plain_NK, heads_NK) and prefers_classes(mean_of([heads_NK, moved_NK]), labels_N, fold_N):
        for own in assignments[len(deciding) :]:
            own.move(update_transition)
        mean_NK = mean_of(_moved_predictions(assignments))
        for done, own in enumerate(assignments):
            own.move(_noise_of_mean(mean_NK, labels_N, own.sums.fold_N))
            on_progress(done)
        mixed_NK = mean_by_class_likelihood(*_moved_predictions(assignments), labels_N, fold_N)
        noise = class_noise(mixed_NK, labels_N, fold_N)
        if keeps_to(labels_N, plain_NK, mixed_NK, noise.matrix_KK):
            return mixed_NK, noise
    for done, own in enumerate(assignments):
        own.move(update_symmetric, _SYMMETRIC_ROUNDS)
        on_progress(done)
    heads_NK, moved_NK = _moved_predictions(assignments)
    discriminant_NK = mean_of([own.discriminant_NK for own in assignments])
    heads_NK = heads_NK if keeps_to(labels_N, plain_NK, heads_NK) else plain_NK
    discriminant_NK = moved_NK if keeps_to(labels_N, discriminant_NK, moved_NK) else discriminant_NK
    mixed_NK = mean_by_likelihood(heads_NK, discriminant_NK, labels_N)
    return mixed_NK, noise_of_mean(mixed_NK, labels_N, fold_N)


def _moved_predictions(assignments: Sequence[_Assignment]) -> tuple[Tensor, Tensor]:
    """Those of the heads and of the discriminant, fitted to moved targets."""
    heads_NK = mean_of([own.moved.predicted_NK for own in assignments])
    return heads_NK, mean_of([own.moved_discriminant() for own in assignments])


def _noise_of_mean(mean_NK: Tensor, labels_N: Tensor, fold_N: Tensor) -> UpdateTransition:
    """V by the mean of all predictors, which is steadier than by the inner heads; each fold's without its labels."""
    found = []
    for fold in range(int(fold_N.max()) + 1):
        seen = fold_N != fold
        begin = Transition.at_first(mean_NK.shape[1])
        for _ in range(_ROUNDS_OF_MEAN):
            begin = update_transition(mean_NK[seen], labels_N[seen], fold_N[seen], begin)
        found.append(begin)

    def update(_: Tensor, __: Tensor, fold_n: Tensor, ___: Transition) -> Transition:
        (left_out,) = set(range(len(found))) - set(fold_n.unique().tolist())
        return found[left_out]

    return update


def keeps_to(labels_N: Tensor, plain_NK: Tensor, moved_NK: Tensor, matrix_KK: Tensor | None = None) -> bool:
    """Whether targets still mean the classes that labels name.

    With a handful of samples for each class, of which nested folds take two fifths away, they may drift elsewhere:
    classes change places, or labels are called wrong that plain heads predict. Then labels are taken as they are.
    """
    plainly, moved = ((own_NK.argmax(1) == labels_N).float().mean() for own_NK in (plain_NK, moved_NK))
    if not bool(moved >= _KEPT_AGREEMENT * plainly):
        return False
    if matrix_KK is None:
        return True
    named = labels_N.unique()  # a class or two may have more wrong labels than right
    return bool((matrix_KK[named].argmax(1) == named).float().mean() > 0.5)


def best_kernel(features_NF: Tensor, labels_N: Tensor, fold_N: Tensor, num_classes: int) -> KernelAxes:
    """The kernel under which held-out labels are likeliest, on a share of the samples where they are many."""
    chosen_n = torch.randperm(len(labels_N), generator=seeded(0, "kernel"))[:_KERNEL_SAMPLES].sort().values
    features_nF, labels_n1K = features_NF[chosen_n], one_hot(labels_N[chosen_n], num_classes).unsqueeze(1)

    def likelihood(candidate: tuple[bool, float]) -> float:
        root, width = candidate
        axes = KernelAxes.of(features_nF, root=root, width=width, landmarks=_KERNEL_LANDMARKS)
        sums = FoldSums.of(axes(features_nF), fold_N[chosen_n])
        return held_out_discriminant(sums, labels_n1K).likelihood

    root, width = max(candidates(features_NF), key=likelihood)
    return KernelAxes.of(features_NF, root=root, width=width)
