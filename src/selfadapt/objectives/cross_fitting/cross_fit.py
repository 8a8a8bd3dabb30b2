"""Cross-fitting: out-of-sample predictions for every sample and an estimate of the label noise, without true labels.

Two predictors that make different errors are fitted on the same folds, each to targets updated by self-adaptive
training (nested_heads.py). Names call updated targets "moved".

    heads          softmax regression on the features, with nested folds
    discriminant   a linear discriminant on the axes of a Gaussian kernel, in closed form (discriminant.py)

The result is their weighted mean, with the weights that maximise the likelihood of the labels. Targets are updated
twice. The first update assumes class-dependent noise, estimated from the inner heads. The second uses the noise
estimated from the mean of all predictors, if it explains held-out labels clearly better than symmetric noise does
(noise_model.py). Otherwise it uses symmetric noise, and V only affects P(wrong). Small data sets are split into folds
several times and the predictions averaged; the first assignment selects the noise model. Large data sets skip the
second update.

The prediction for a sample does not depend on its label, except through a few hyperparameters (weight decay, shrinkage,
kernel, mixing weights, temperature) that are selected on all labels. Validation and test samples are predicted by a
final head, fitted to the targets of all training samples.

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
LEAST_TO_JUDGE = 5  # samples; labels of smaller classes are not judged
_LARGEST_FEATURE = 1e15  # float32 can still sum the squares
_LEAST_AGREEMENT = 0.85  # of held-out predictions with labels, relative to that before targets were updated
_MEAN_ROUNDS = 3  # rounds of EM, each a few steps
_SYMMETRIC_ROUNDS = 4  # a single rate converges faster than V
_KERNEL_SAMPLES, _KERNEL_LANDMARKS = 1200, 300  # used to select the kernel
_PER_CHOICE = 4  # the first of up to four assignments selects the noise model
_ASSIGNMENTS = ((400, 4), (3000, 3), (6000, 2))  # (maximum number of samples, number of assignments)


@dataclass(frozen=True)
class CrossFitted:
    """The result of cross-fitting. Every row of `predicted_NK` is an out-of-sample prediction."""

    predicted_NK: Tensor  # q, at the temperature of the noise model
    heads_NK: Tensor  # predictions of the softmax heads alone
    plain_NK: Tensor  # predictions of heads fitted to the given labels
    noise: NoiseModel
    fold_N: Tensor
    decay: float
    plain_decay: float
    features_NF: Tensor
    labels_N: Tensor
    axes: PrincipalAxes

    @cached_property
    def head_DK(self) -> Tensor:
        """A head fitted to the targets of all samples. It predicts new samples."""
        targets_NK = posterior(self.predicted_NK, self.labels_N, self.noise.matrix_KK)
        return fit_head(self.axes(self.features_NF), targets_NK, self.decay)

    @cached_property
    def plain_head_DK(self) -> Tensor:
        """A head fitted to the given labels of all samples."""
        labels_NK = one_hot(self.labels_N, self.predicted_NK.shape[1])
        return fit_head(self.axes(self.features_NF), labels_NK, self.plain_decay)

    def predict(self, features_NF: Tensor) -> Tensor:
        """Class probabilities of new samples."""
        return (self.axes(features_NF) @ self.head_DK).softmax(1)


def check_enough(labels_N: Tensor) -> None:
    """Raise a ValueError if there are too few samples to judge any label."""
    if len(labels_N) < LEAST_SAMPLES:
        raise ValueError(f"{len(labels_N)} samples are too few to judge labels; pass at least {LEAST_SAMPLES}")
    if torch.bincount(labels_N).max() < LEAST_TO_JUDGE:
        raise ValueError(
            f"no class has {LEAST_TO_JUDGE} samples, so none can be judged; are these ids instead of labels?"
        )


def check_spread(labels_N: Tensor, fold_N: Tensor, names: Sequence[str] | None = None) -> None:
    """Raise a ValueError if all samples of a class are in one fold, so their heads are not fitted to the class.

    For a class with enough samples to be judged, this happens only if all its samples are in one group.
    """
    for label, count in enumerate(torch.bincount(labels_N).tolist()):
        if count >= LEAST_TO_JUDGE and len(fold_N[labels_N == label].unique()) == 1:
            name = f"number {label} (from 0)" if names is None else repr(names[label])
            raise ValueError(
                f"all {count} samples of the class {name} belong together, by their group or as duplicates, so no "
                "other sample shows what the class is; give groups that run across classes, or leave the class out"
            )


def check_features(features_NF: Tensor) -> None:
    """Raise a ValueError if no head can be fitted to these features."""
    if bool((features_NF == features_NF[:1]).all()):
        raise ValueError("features are the same for every sample, so labels cannot be judged by them")
    largest = float(features_NF.abs().max())
    if not 1 / _LARGEST_FEATURE < largest < _LARGEST_FEATURE:
        raise ValueError(f"features of magnitude {largest:.0e} over- or underflow in float32; scale them to about 1")


def deal_assignments(
    features_NF: Tensor, labels_N: Tensor, seed: int, groups_N: Tensor | None = None, folds: int = FOLDS
) -> Tensor:
    """Assign samples to folds (R×N), several times for small data. The order of the samples does not matter."""
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
    *,
    kernel: KernelAxes | None = None,
) -> CrossFitted:
    """Cross-fit these samples. `fold_RN` holds one or more assignments to the folds 0, 1, … (at least three).

    By default the kernel is selected on these samples.
    """
    fold_RN, features_NF = fold_RN.view(-1, len(labels_N)), features_NF.float()
    stages = 2 * len(fold_RN) + 1
    axes = PrincipalAxes.of(features_NF)
    kernel_ND = (kernel or best_kernel(features_NF, labels_N, fold_RN[0], num_classes))(features_NF)
    assignments = []
    for fold_N in fold_RN:
        heads = NestedHeads(features_NF, labels_N, fold_N, num_classes, settings, axes)
        assignments.append(_Assignment(heads, FoldSums.of(kernel_ND, fold_N), labels_N, num_classes))
        on_progress(len(assignments), stages)
    heads_NK, mixed_NK, noise = _mix(assignments, labels_N, lambda done: on_progress(len(fold_RN) + done, stages))
    first = assignments[0]
    on_progress(stages, stages)
    return CrossFitted(
        predicted_NK=noise.sharpened(mixed_NK),
        heads_NK=heads_NK,
        plain_NK=mean_of([assignment.heads.plain_NK for assignment in assignments]),
        noise=noise,
        fold_N=fold_RN[0],
        decay=first.moved.decay,
        plain_decay=first.heads.plain_decay,
        features_NF=features_NF,
        labels_N=labels_N,
        axes=axes,
    )


class _Assignment:
    """Both predictors for one assignment to folds, fitted to the labels and, after `move`, to updated targets."""

    moved: MovedHeads

    def __init__(self, heads: NestedHeads, sums: FoldSums, labels_N: Tensor, num_classes: int) -> None:
        self.heads, self.sums = heads, sums
        labels_N1K = one_hot(labels_N, num_classes).unsqueeze(1)
        self.discriminant_NK = held_out_discriminant(sums, labels_N1K).log_NK.exp()

    def move(self, update: UpdateTransition, most: int | None = None) -> None:
        """Update the targets under this noise model. For large data, targets that were updated before are reused."""
        if not (self.heads.large and hasattr(self, "moved")):
            self.moved = self.heads.moved(update, no_progress, most)

    def moved_discriminant(self) -> Tensor:
        return held_out_discriminant(self.sums, self.moved.targets_NFK).log_NK.exp()


def _mix(
    assignments: Sequence[_Assignment], labels_N: Tensor, on_progress: Callable[[int], None]
) -> tuple[Tensor, Tensor, NoiseModel]:
    """The mean of the heads and of all predictors over all assignments, and the noise model of the latter."""
    fold_N, selecting = assignments[0].sums.fold_N, assignments[: max(1, len(assignments) // _PER_CHOICE)]
    plain_NK = mean_of([assignment.heads.plain_NK for assignment in assignments])
    for assignment in selecting:
        assignment.move(update_transition)
    heads_NK, moved_NK = _moved_predictions(selecting)
    if keeps_to(labels_N, plain_NK, heads_NK) and prefers_classes(mean_of([heads_NK, moved_NK]), labels_N, fold_N):
        for assignment in assignments[len(selecting) :]:
            assignment.move(update_transition)
        mean_NK = mean_of(_moved_predictions(assignments))
        for done, assignment in enumerate(assignments):
            assignment.move(_noise_of_mean(mean_NK, labels_N, assignment.sums.fold_N))
            on_progress(done)
        heads_NK, moved_NK = _moved_predictions(assignments)
        mixed_NK = mean_by_class_likelihood(heads_NK, moved_NK, labels_N, fold_N)
        noise = class_noise(mixed_NK, labels_N, fold_N)
        if keeps_to(labels_N, plain_NK, mixed_NK, noise.matrix_KK):
            return heads_NK, mixed_NK, noise
    for done, assignment in enumerate(assignments):
        assignment.move(update_symmetric, _SYMMETRIC_ROUNDS)
        on_progress(done)
    heads_NK, moved_NK = _moved_predictions(assignments)
    discriminant_NK = mean_of([assignment.discriminant_NK for assignment in assignments])
    heads_NK = heads_NK if keeps_to(labels_N, plain_NK, heads_NK) else plain_NK
    discriminant_NK = moved_NK if keeps_to(labels_N, discriminant_NK, moved_NK) else discriminant_NK
    mixed_NK = mean_by_likelihood(heads_NK, discriminant_NK, labels_N)
    return heads_NK, mixed_NK, class_noise(mixed_NK, labels_N, fold_N, least_temperature=0.0)


def _moved_predictions(assignments: Sequence[_Assignment]) -> tuple[Tensor, Tensor]:
    """Predictions of the heads and of the discriminant, both fitted to updated targets."""
    heads_NK = mean_of([assignment.moved.predicted_NK for assignment in assignments])
    return heads_NK, mean_of([assignment.moved_discriminant() for assignment in assignments])


def _noise_of_mean(mean_NK: Tensor, labels_N: Tensor, fold_N: Tensor) -> UpdateTransition:
    """Estimate V of each fold from the others, with the mean of all predictors; it varies less than inner heads."""
    transitions = []
    for fold in range(int(fold_N.max()) + 1):
        others = fold_N != fold
        start = Transition.at_first(mean_NK.shape[1])
        for _ in range(_MEAN_ROUNDS):
            start = update_transition(mean_NK[others], labels_N[others], fold_N[others], start)
        transitions.append(start)

    def update(_: Tensor, __: Tensor, fold_n: Tensor, ___: Transition) -> Transition:
        (left_out,) = set(range(len(transitions))) - set(fold_n.unique().tolist())
        return transitions[left_out]

    return update


def keeps_to(labels_N: Tensor, plain_NK: Tensor, moved_NK: Tensor, matrix_KK: Tensor | None = None) -> bool:
    """Whether predictions after the target updates still agree with the labels.

    With few samples per class, of which nested folds leave out two fifths, targets can drift: classes are swapped, or
    labels that plain heads predict are called wrong. In that case the given labels are used.
    """
    plain, moved = ((predicted_NK.argmax(1) == labels_N).float().mean() for predicted_NK in (plain_NK, moved_NK))
    if not bool(moved >= _LEAST_AGREEMENT * plain):
        return False
    if matrix_KK is None:
        return True
    present = labels_N.unique()  # fewer than half of the classes may have more wrong labels than right ones
    return bool((matrix_KK[present].argmax(1) == present).float().mean() > 0.5)


def best_kernel(features_NF: Tensor, labels_N: Tensor, fold_N: Tensor, num_classes: int) -> KernelAxes:
    """The kernel that maximises the likelihood of held-out labels, selected on a subset of large data."""
    chosen_n = torch.randperm(len(labels_N), generator=seeded(0, "kernel"))[:_KERNEL_SAMPLES].sort().values
    features_nF, labels_n = features_NF[chosen_n], labels_N[chosen_n]
    if num_classes > _KERNEL_SAMPLES:  # most of them are absent, but would cost as much as the others
        labels_n = labels_n.unique(return_inverse=True)[1]
        num_classes = int(labels_n.max()) + 1
    labels_n1K = one_hot(labels_n, num_classes).unsqueeze(1)

    def likelihood(candidate: tuple[bool, float]) -> float:
        root, width = candidate
        axes = KernelAxes.of(features_nF, root=root, width=width, landmarks=_KERNEL_LANDMARKS)
        sums = FoldSums.of(axes(features_nF), fold_N[chosen_n])
        return held_out_discriminant(sums, labels_n1K).likelihood

    root, width = max(candidates(features_NF), key=likelihood)
    return KernelAxes.of(features_NF, root=root, width=width)
