"""Self-adaptive training of a head by folds: targets that move to the posterior, made by heads that saw no label of it.

Algorithm 1 of the paper with two changes. The prediction comes from a head that did not see the label (cross-fitting),
and the target moves to what prediction *and* label say together:

    q_i  = softmax(h(x_i)),  h fitted without the fold of i
    r_ik ∝ q_ik V[k, y_i],   V[k, j] = P(given j | true k)        (objectives/transition.py)
    t_i <- r_i,  w_i = max_k t_ik,  and h is fitted again, from where it stopped
    L    = 1 / (sum_i w_i)  sum_i w_i sum_k -t_ik log softmax(h(x_i))_k  +  decay / 2 |h|^2

Folds alone are not enough. From the second round on a head would learn targets that other heads moved, which saw the
very label it is to judge, and would agree with it more than chance. So folds are nested: to judge fold f the whole of
the above is done with the other folds alone. Its inner heads leave out f and one fold g more and move the targets of g;
its outer head learns the moved targets and is the only one that is asked about f. All inner heads, and all outer heads,
are fitted at once (models/softmax_regression.py).

That has a second use. A prediction that knows nothing of its sample's label stays the same whatever that label is, so
the audit can put any other label in and see what it would have said (evaluation/label_quality.py), without a refit.

Decay is chosen twice, without a clean label: first by the likelihood of the given labels under q, then, when targets
have moved, by the likelihood of the targets that other folds' heads gave a sample. Where labels were noisy the second
is smaller. Validation and test samples are judged by a last head, fitted to the targets of all training samples.

No momentum is needed (alpha = 0): what the moving average does for targets that follow their own predictions, the
folds do here.

Shapes: N samples, F folds, P inner heads, D axes, K classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from selfadapt.models.softmax_regression import PrincipalAxes, fit_heads, pieces_of
from selfadapt.objectives.transition import Transition, estimate_transition, posterior_pieces, update_transition
from selfadapt.progress import ProgressCallback, no_progress

LEAST_SAMPLES = 10
LEAST_TO_JUDGE = 5  # samples of a class, for its labels to be judged
_LARGEST = 1e15  # feature, whose square float32 can still sum
_LARGE = 4e10  # numbers multiplied in one pass above which inner folds are joined and axes are cut
_LARGE_AXES = (
    256  # all that is large together, on CIFAR10 (one seed): 0.864 for 0.852 asymmetric, 0.970 for 0.971 symmetric
)
_FEW_FOR_AN_AXIS = 4  # samples
_FACTORS = tuple(10 ** (step / 2) for step in range(1, 11))  # decays tried on the labels, below and above the first
_KEPT_AGREEMENT = 0.85  # of held-out predictions with labels, when targets have moved, as a share of that before
_FINE_FACTORS = (2.0,)  # and on moved targets, which confirm themselves a little the less decay there is


@dataclass(frozen=True, kw_only=True)
class CrossFitting:
    """How to cross-fit."""

    rounds: int = 6  # in which targets move
    decay: float | None = None  # instead of those that would be chosen
    first_decay: float = 1e-3  # from which the search begins, for samples of mean squared length 1
    passes: int = 8  # over the samples, in a fit that begins where another one stopped
    first_passes: int = 20


_LARGE_SETTINGS = CrossFitting(rounds=4, passes=5, first_passes=10)


@dataclass(frozen=True)
class CrossFitted:
    """What cross-fitting found. Every row of `predicted_NK` comes from a head that knows nothing of that label."""

    predicted_NK: Tensor  # q
    plain_NK: Tensor  # the same of heads fitted to the labels as they are
    transition: Transition  # V
    fold_N: Tensor
    decay: float
    plain_decay: float
    axes: PrincipalAxes
    head_DK: Tensor  # fitted to the targets of all samples, for samples that had no part in it
    plain_head_DK: Tensor  # fitted to the labels as they are

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
                f"all {count} samples of the class {name} belong together, by their group or as copies, so no other "
                "sample tells what the class is; give groups that run across classes, or leave the class out"
            )


def check_features(features_NF: Tensor) -> None:
    """A ValueError if no head could be fitted to them."""
    if bool((features_NF == features_NF[:1]).all()):
        raise ValueError("features are the same for every sample, so they tell nothing")
    largest = float(features_NF.abs().max())
    if not 1 / _LARGEST < largest < _LARGEST:
        raise ValueError(f"features are of a size ({largest:.0e}) that float32 cannot compute with; bring them near 1")


def cross_fit(
    features_NF: Tensor,
    labels_N: Tensor,
    fold_N: Tensor,
    num_classes: int,
    settings: CrossFitting | None = None,
    on_progress: ProgressCallback = no_progress,
) -> CrossFitted:
    """Cross-fit a head to these samples. `fold_N` must hold the folds 0, 1, … (at least three)."""
    order_N = fold_N.argsort(stable=True)  # the samples of a fold stand together, which spares heads that skip it
    large = _work(features_NF, fold_N, num_classes) > _LARGE
    axes = PrincipalAxes.of(features_NF)
    if large:
        axes = axes.first(_LARGE_AXES)
    task = _Task(
        axes_ND=axes(features_NF)[order_N],
        labels_N=labels_N[order_N],
        fold_N=fold_N[order_N],
        num_classes=num_classes,
        inner=2 if large else int(fold_N.max()),
        settings=settings or (_LARGE_SETTINGS if large else CrossFitting()),
    )
    back_N = order_N.argsort()
    found = _cross_fit(task, axes, on_progress)
    if not _keeps_to(task.labels_N, found):
        plain = Transition.at_first(num_classes)
        found = replace(found, predicted_NK=found.plain_NK, transition=plain, head_DK=found.plain_head_DK)
    return replace(found, predicted_NK=found.predicted_NK[back_N], plain_NK=found.plain_NK[back_N], fold_N=fold_N)


def _keeps_to(labels_N: Tensor, found: CrossFitted) -> bool:
    """Whether targets still mean the classes that labels name.

    With a handful of samples for each class, of which nested folds take two fifths away, they may drift elsewhere:
    classes change places, or labels are called wrong that plain heads predict. Then labels are taken as they are.
    """
    plainly, moved = ((own_NK.argmax(1) == labels_N).float().mean() for own_NK in (found.plain_NK, found.predicted_NK))
    named = labels_N.unique()
    in_place = (
        found.transition.matrix_KK[named].argmax(1) == named
    )  # a class or two may have more wrong labels than right
    return bool((in_place.float().mean() > 0.5) & (moved >= _KEPT_AGREEMENT * plainly))


def _work(features_NF: Tensor, fold_N: Tensor, num_classes: int) -> float:
    folds = int(fold_N.max()) + 1
    return float(features_NF.shape[0] * min(features_NF.shape) * num_classes * folds * (folds - 1))


@dataclass(frozen=True, kw_only=True)
class _Task:
    axes_ND: Tensor
    labels_N: Tensor
    fold_N: Tensor  # sorted
    num_classes: int
    inner: int  # heads for each fold that move the targets of the others
    settings: CrossFitting

    @property
    def folds(self) -> int:
        return int(self.fold_N[-1]) + 1

    def without(self, left_out: list[list[int]]) -> Tensor:
        """1 for the samples that a problem sees (N×problems), which leaves out these folds."""
        columns = [~torch.isin(self.fold_N, torch.tensor(folds)) for folds in left_out]
        return torch.stack(columns, 1).float()

    def inner_folds(self) -> list[tuple[int, list[int]]]:
        """For each inner head: the fold f for which it works, and the folds g whose targets it moves."""
        pairs = []
        for outer in range(self.folds):
            others = [fold for fold in range(self.folds) if fold != outer]
            pairs += [(outer, others[part :: self.inner]) for part in range(min(self.inner, len(others)))]
        return pairs

    def held_out(self, heads_DFK: Tensor) -> Tensor:
        """Log-probabilities of each sample, by the head that left its fold out."""
        log_NK = torch.empty(len(self.axes_ND), self.num_classes)
        for fold in range(self.folds):
            rows = self.fold_N == fold
            log_NK[rows] = (self.axes_ND[rows] @ heads_DFK[:, fold]).log_softmax(1)
        return log_NK


def _cross_fit(task: _Task, axes: PrincipalAxes, on_progress: ProgressCallback) -> CrossFitted:
    settings, folds, classes = task.settings, task.folds, task.num_classes
    stages = settings.rounds + 3  # fits of about the same length: labels, inner heads, each round, and the last heads
    labels_N1K = _one_hot(task.labels_N, classes).unsqueeze(1)
    outer_NF = task.without([[fold] for fold in range(folds)])

    def fit_labels(decay: float, start_DFK: Tensor) -> tuple[Tensor, Tensor]:
        heads_DFK = fit_heads(
            task.axes_ND, labels_N1K, outer_NF, torch.full((folds,), decay), start_DFK,
            passes=settings.first_passes, tolerance=1e-3,
        )  # fmt: skip
        log_NK = task.held_out(heads_DFK)
        return heads_DFK, -log_NK.gather(1, task.labels_N.unsqueeze(1)).squeeze(1)

    nothing_DFK = torch.zeros(task.axes_ND.shape[1], folds, classes)
    first, factors = (settings.first_decay, _FACTORS) if settings.decay is None else (settings.decay, ())
    plain_decay, plain_DFK = _best_decay(fit_labels, first, factors, nothing_DFK)
    on_progress(1, stages)
    moved = _Moved.start(task, plain_decay)
    on_progress(2, stages)
    decay, outer_DFK = plain_decay, plain_DFK
    for round_ in range(settings.rounds):
        moved.move_targets()
        if round_ == settings.rounds // 2 and settings.decay is None:
            decay, outer_DFK = _best_decay(moved.fit_outer, decay, _FINE_FACTORS, outer_DFK)
        if round_ < settings.rounds - 1:
            moved.fit_inner(decay)
        on_progress(3 + round_, stages)
    outer_DFK, _ = moved.fit_outer(decay, outer_DFK)
    predicted_NK = task.held_out(outer_DFK).exp_()
    transition = estimate_transition(predicted_NK, task.labels_N, task.fold_N, steps=10)
    head_DK = _refit(task, predicted_NK, transition, decay, outer_DFK.mean(1, keepdim=True))
    every_N1 = torch.ones(len(task.labels_N), 1)
    plain_head_D1K = fit_heads(
        task.axes_ND, labels_N1K, every_N1, torch.tensor([plain_decay]), plain_DFK.mean(1, keepdim=True),
        passes=settings.first_passes,
    )  # fmt: skip
    plain_NK = task.held_out(plain_DFK).exp_()
    return CrossFitted(
        predicted_NK, plain_NK, transition, task.fold_N, decay, plain_decay, axes, head_DK, plain_head_D1K.squeeze(1)
    )


def _refit(task: _Task, predicted_NK: Tensor, transition: Transition, decay: float, start_D1K: Tensor) -> Tensor:
    """A head for the targets of all samples (D×K)."""
    targets_N1K = torch.empty(len(predicted_NK), 1, task.num_classes)
    for piece, rows_nK in posterior_pieces(predicted_NK, task.labels_N, transition.matrix_KK):
        targets_N1K[piece, 0] = rows_nK
    weights_N1 = targets_N1K.amax(2)
    passes = task.settings.first_passes
    head_D1K = fit_heads(
        task.axes_ND, targets_N1K, weights_N1, torch.tensor([decay]), start_D1K, passes=passes
    )  # fmt: skip
    return head_D1K.squeeze(1)


class _Moved:
    """The targets that each fold's judge learns: those of the other folds, moved by heads that did not see them."""

    def __init__(self, task: _Task, heads_DPK: Tensor) -> None:
        count, folds, classes = len(task.labels_N), task.folds, task.num_classes
        self.task, self.heads_DPK = task, heads_DPK
        self.pairs = task.inner_folds()
        self.outer_P = torch.tensor([outer for outer, _ in self.pairs])
        self.inner_NP = task.without([[outer, *moved] for outer, moved in self.pairs])
        self.outer_NF = task.without([[fold] for fold in range(folds)])
        exact = count * folds * classes < 2**28
        self.targets_NFK = torch.zeros(count, folds, classes, dtype=torch.float32 if exact else torch.float16)
        self.weights_NF = torch.zeros(count, folds)
        self.transitions = [Transition.at_first(classes) for _ in range(folds)]

    @classmethod
    def start(cls, task: _Task, decay: float) -> "_Moved":
        """Inner heads fitted to the labels as they are. That of f and g is also that of g and f.

        They begin at nothing: every head there is by now has seen the labels of f or of g. Where samples are few for
        the axes they come down from a large decay, as those did by which it was chosen: with little of it from the
        start a head first fits them by their noise, and a convex loss that is nearly flat keeps it there for long.
        """
        nothing_DPK = torch.zeros(task.axes_ND.shape[1], len(task.inner_folds()), task.num_classes)
        moved = cls(task, nothing_DPK)
        labels_N1K = _one_hot(task.labels_N, task.num_classes).unsqueeze(1)
        left_out = [tuple(sorted([outer, *others])) for outer, others in moved.pairs]
        distinct = sorted(set(left_out))
        seen_NP = task.without([list(folds) for folds in distinct])
        heads_DPK = nothing_DPK[:, : len(distinct)]
        passes = task.settings.first_passes
        few = len(task.labels_N) < _FEW_FOR_AN_AXIS * task.axes_ND.shape[1]
        for step in _down_to(decay, task.settings.first_decay) if few else [decay]:
            decay_P = torch.full((len(distinct),), step)
            heads_DPK = fit_heads(task.axes_ND, labels_N1K, seen_NP, decay_P, heads_DPK, passes=passes, tolerance=1e-3)
        moved.heads_DPK = heads_DPK[:, [distinct.index(folds) for folds in left_out]].contiguous()
        return moved

    def move_targets(self) -> None:
        """t <- r and w = max t, for each f in the other folds' samples; V likewise knows nothing of f."""
        task = self.task
        for outer in range(task.folds):
            predicted_NK = torch.zeros(len(task.labels_N), task.num_classes)
            for head, (of, folds) in enumerate(self.pairs):
                if of == outer:
                    rows = torch.isin(task.fold_N, torch.tensor(folds))
                    predicted_NK[rows] = (task.axes_ND[rows] @ self.heads_DPK[:, head]).softmax(1)
            others = task.fold_N != outer
            predicted_nK, labels_n, fold_n = predicted_NK[others], task.labels_N[others], task.fold_N[others]
            transition = update_transition(predicted_nK, labels_n, fold_n, self.transitions[outer], steps=4)
            self.transitions[outer] = transition
            for piece, rows_nK in posterior_pieces(predicted_NK, task.labels_N, transition.matrix_KK):  # f's own stay 0
                self.targets_NFK[piece, outer] = rows_nK.to(self.targets_NFK.dtype)
            self.weights_NF[:, outer] = self.targets_NFK[:, outer].amax(1).float()

    def fit_inner(self, decay: float) -> None:
        self.heads_DPK = fit_heads(
            self.task.axes_ND,
            self.targets_NFK,
            self.inner_NP * self.weights_NF[:, self.outer_P],
            torch.full((len(self.pairs),), decay),
            self.heads_DPK,
            table_P=self.outer_P,
            passes=self.task.settings.passes,
        )

    def fit_outer(self, decay: float, start_DFK: Tensor) -> tuple[Tensor, Tensor]:
        """The judges of the folds, and the cross entropy of their answers with the targets that others gave."""
        task = self.task
        heads_DFK = fit_heads(
            task.axes_ND,
            self.targets_NFK,
            self.outer_NF * self.weights_NF,
            torch.full((task.folds,), decay),
            start_DFK,
            table_P=torch.arange(task.folds),
            passes=task.settings.first_passes,
        )
        log_NK = task.held_out(heads_DFK)
        losses_N = torch.empty(len(log_NK))
        for piece in pieces_of(len(log_NK), task.num_classes * task.folds):
            given_nK = self.targets_NFK[piece].float().sum(1) / (task.folds - 1)  # a fold's own table is empty there
            losses_N[piece] = -(given_nK * log_NK[piece]).sum(1)
        return heads_DFK, losses_N


def _best_decay(
    fit: Callable[[float, Tensor], tuple[Tensor, Tensor]], first: float, factors: tuple[float, ...], start_DPK: Tensor
) -> tuple[float, Tensor]:
    """The decay of the least loss, and its heads: downwards from `first`, and upwards if that does not help.

    `factors` are those that `first` is divided by, one after the other, while that helps; then multiplied by.
    Less decay must be better by more than the standard error of the difference. In doubt the smoother head.
    """
    best_decay, (best_DPK, least_N) = first, fit(first, start_DPK)
    for down in (True, False):
        for factor in factors:
            decay = first / factor if down else first * factor
            heads_DPK, losses_N = fit(decay, best_DPK)
            gain_N = least_N - losses_N
            doubt = gain_N.std(correction=0).item() / len(gain_N) ** 0.5 if down else 0.0
            if not gain_N.mean().item() > doubt:
                break
            best_decay, best_DPK, least_N = decay, heads_DPK, losses_N
        if best_decay != first:
            break
    return best_decay, best_DPK


def _down_to(decay: float, first: float) -> list[float]:
    return [first / factor for factor in (1.0, *_FACTORS) if first / factor > 1.01 * decay] + [decay]


def _one_hot(labels_N: Tensor, num_classes: int) -> Tensor:
    table_NK = torch.zeros(len(labels_N), num_classes, dtype=torch.float16)
    return table_NK.scatter_(1, labels_N.unsqueeze(1), 1.0)
