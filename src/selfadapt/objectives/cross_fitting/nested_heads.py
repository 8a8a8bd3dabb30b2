"""Softmax heads with nested folds: targets are updated to the posterior, computed from out-of-sample predictions.

This is Algorithm 1 of the paper with two changes. The prediction comes from a head that was not fitted to the label
(cross-fitting), and the target is the posterior given both the prediction *and* the label:

    q_i  = softmax(h(x_i)),  h fitted without the fold of i
    r_ik ∝ q_ik V[k, y_i],   V[k, j] = P(given j | true k)        (objectives/cross_fitting/transition.py)
    t_i <- r_i,  w_i = max_k t_ik,  and h is fitted again, from its current weights
    L    = 1 / (sum_i w_i)  sum_i w_i sum_k -t_ik log softmax(h(x_i))_k  +  decay / 2 |h|^2

Plain folds are not enough. From the second round on, a head is fitted to targets updated by other heads, which were
fitted to the label that it predicts, so it would agree with that label too often. Folds are therefore nested: the
predictions for fold f use the other folds only. Inner heads leave out f and one more fold g, and update the targets of
g. The outer head is fitted to the updated targets and predicts f. All inner heads are fitted at once, and so are all
outer heads (models/linear/softmax_regression.py).

The weight decay is selected twice, without clean labels: first by the likelihood of the given labels under q, then,
after some target updates, by the likelihood of the targets from other folds' heads. With noisy labels the second value
is smaller.

Momentum is not needed (alpha = 0). In the paper a moving average stabilises targets that follow their own predictions;
here the folds do.

Shapes: N samples, F folds, P inner heads, D axes, K classes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from selfadapt.core.progress import ProgressCallback
from selfadapt.models.linear.softmax_regression import PrincipalAxes, fit_heads, pieces_of
from selfadapt.objectives.cross_fitting.transition import Transition, UpdateTransition, posterior_pieces

_LARGE_PRODUCT = 4e10  # multiplications per pass above which inner folds are merged
_MOST_AXES = 256  # for the heads; the discriminant uses the others through the kernel
_FINAL_PASSES = 12
_LEAST_SAMPLES_PER_AXIS = 4  # with fewer, weight decay is lowered step by step
_FACTORS = tuple(10 ** (step / 2) for step in range(1, 11))  # tried on the labels, below and above the first decay
_FINE_FACTORS = (2.0,)  # tried on updated targets, which favour small decays slightly


@dataclass(frozen=True, kw_only=True)
class CrossFitting:
    """Settings for fitting heads with nested folds."""

    rounds: int = 7  # number of target updates
    decay: float | None = None  # weight decay; None selects it
    first_decay: float = 1e-3  # start of the search, for samples of mean squared norm 1
    passes: int = 4  # over the samples, in later fits of the inner heads
    first_passes: int = 12  # in the other fits


_LARGE_SETTINGS = CrossFitting(rounds=4, passes=5, first_passes=10)


def is_large(features_NF: Tensor, fold_N: Tensor, num_classes: int) -> bool:
    """Whether the data is so large that inner folds are merged to save time."""
    folds = int(fold_N.max()) + 1
    return float(features_NF.shape[0] * min(features_NF.shape) * num_classes * folds * (folds - 1)) > _LARGE_PRODUCT


@dataclass(frozen=True, kw_only=True)
class _Task:
    axes_ND: Tensor
    labels_N: Tensor
    fold_N: Tensor  # sorted
    num_classes: int
    inner: int  # number of inner heads per fold
    settings: CrossFitting

    @property
    def folds(self) -> int:
        return int(self.fold_N[-1]) + 1

    def without(self, left_out: list[list[int]]) -> Tensor:
        """Sample weights (N×problems): 0 in the folds that a problem leaves out, 1 elsewhere."""
        columns = [~torch.isin(self.fold_N, torch.tensor(folds)) for folds in left_out]
        return torch.stack(columns, 1).float()

    def inner_folds(self) -> list[tuple[int, list[int]]]:
        """For each inner head: the outer fold f, and the folds g whose targets it updates."""
        pairs = []
        for outer in range(self.folds):
            others = [fold for fold in range(self.folds) if fold != outer]
            pairs += [(outer, others[part :: self.inner]) for part in range(min(self.inner, len(others)))]
        return pairs

    def held_out(self, heads_DFK: Tensor) -> Tensor:
        """Log-probabilities of each sample from the head that leaves out its fold."""
        log_NK = torch.empty(len(self.axes_ND), self.num_classes)
        for fold in range(self.folds):
            rows = self.fold_N == fold
            log_NK[rows] = (self.axes_ND[rows] @ heads_DFK[:, fold]).log_softmax(1)
        return log_NK


@dataclass(frozen=True)
class MovedHeads:
    """The result of fitting heads to updated targets."""

    predicted_NK: Tensor  # q of the outer heads
    targets_NFK: Tensor  # targets of each fold's outer head; 0 for samples of that fold
    decay: float


class NestedHeads:
    """Heads fitted to the given labels of the other folds. `moved` fits them to updated targets."""

    def __init__(
        self,
        features_NF: Tensor,
        labels_N: Tensor,
        fold_N: Tensor,
        num_classes: int,
        settings: CrossFitting | None,
        axes: PrincipalAxes,
    ) -> None:
        self.large = is_large(features_NF, fold_N, num_classes)
        order_N = fold_N.argsort(stable=True)  # contiguous folds are skipped at no cost
        self._back_N = order_N.argsort()
        self._task = task = _Task(
            axes_ND=axes.first(_MOST_AXES)(features_NF)[order_N],
            labels_N=labels_N[order_N],
            fold_N=fold_N[order_N],
            num_classes=num_classes,
            inner=2 if self.large else int(fold_N.max()),
            settings=settings or (_LARGE_SETTINGS if self.large else CrossFitting()),
        )
        self._labels_N1K = one_hot(task.labels_N, num_classes).unsqueeze(1)
        self._fit_plain()

    def _fit_plain(self) -> None:
        task, settings = self._task, self._task.settings
        outer_NF = task.without([[fold] for fold in range(task.folds)])

        def fit_labels(decay: float, start_DFK: Tensor) -> tuple[Tensor, Tensor]:
            heads_DFK = fit_heads(
                task.axes_ND, self._labels_N1K, outer_NF, torch.full((task.folds,), decay), start_DFK,
                passes=settings.first_passes, tolerance=1e-3,
            )  # fmt: skip
            log_NK = task.held_out(heads_DFK)
            return heads_DFK, -log_NK.gather(1, task.labels_N.unsqueeze(1)).squeeze(1)

        zeros_DFK = torch.zeros(task.axes_ND.shape[1], task.folds, task.num_classes)
        first, factors = (settings.first_decay, _FACTORS) if settings.decay is None else (settings.decay, ())
        self.plain_decay, self._plain_DFK = _best_decay(fit_labels, first, factors, zeros_DFK)
        self.plain_NK = task.held_out(self._plain_DFK).exp_()[self._back_N]
        self._start_DPK: Tensor | None = None

    def moved(self, update: UpdateTransition, on_progress: ProgressCallback, most: int | None = None) -> MovedHeads:
        """Alternate between updating targets, with V from `update`, and fitting heads, for at most `most` rounds."""
        task, settings = self._task, self._task.settings
        rounds = min(settings.rounds, most or settings.rounds)
        moved = _MovedTargets(task, update)
        if self._start_DPK is None:
            self._start_DPK = moved.first_heads(self.plain_decay)
        moved.heads_DPK = self._start_DPK
        decay, outer_DFK = self.plain_decay, self._plain_DFK
        for round_ in range(rounds):
            moved.move_targets()
            if round_ == rounds // 2 and settings.decay is None:
                decay, outer_DFK = _best_decay(moved.fit_outer, decay, _FINE_FACTORS, outer_DFK)
            if round_ < rounds - 1:
                moved.fit_inner(decay)
            on_progress(round_ + 1, rounds)
        outer_DFK, _ = moved.fit_outer(decay, outer_DFK)
        predicted_NK = task.held_out(outer_DFK).exp_()
        return MovedHeads(predicted_NK[self._back_N], moved.targets_NFK[self._back_N], decay)


class _MovedTargets:
    """The targets of each fold's outer head: samples of the other folds, updated from out-of-sample predictions."""

    def __init__(self, task: _Task, update: UpdateTransition) -> None:
        count, folds, classes = len(task.labels_N), task.folds, task.num_classes
        self.task, self.update = task, update
        self.pairs = task.inner_folds()
        self.heads_DPK = torch.zeros(task.axes_ND.shape[1], len(self.pairs), classes)
        self.outer_P = torch.tensor([outer for outer, _ in self.pairs])
        self.moved_by = [torch.isin(task.fold_N, torch.tensor(moved)).nonzero().flatten() for _, moved in self.pairs]
        self.inner_NP = task.without([[outer, *moved] for outer, moved in self.pairs])
        self.outer_NF = task.without([[fold] for fold in range(folds)])
        exact = count * folds * classes < 2**28
        self.targets_NFK = torch.zeros(count, folds, classes, dtype=torch.float32 if exact else torch.float16)
        self.weights_NF = torch.zeros(count, folds)
        self.transitions = [Transition.at_first(classes) for _ in range(folds)]

    def first_heads(self, decay: float) -> Tensor:
        """Inner heads fitted to the given labels (D×P×K). The head that leaves out f and g serves both orders.

        They start from zero, because every existing head was fitted to the labels of f or g. With few samples per axis
        the weight decay is lowered step by step, as in its selection. With a small decay from the start, a head first
        fits the noise, and the loss is so flat there that it takes many passes to leave.
        """
        task = self.task
        labels_N1K = one_hot(task.labels_N, task.num_classes).unsqueeze(1)
        left_out = [tuple(sorted([outer, *others])) for outer, others in self.pairs]
        distinct = sorted(set(left_out))
        used_NP = task.without([list(folds) for folds in distinct])
        heads_DPK = self.heads_DPK[:, : len(distinct)]
        passes = task.settings.first_passes
        few = len(task.labels_N) < _LEAST_SAMPLES_PER_AXIS * task.axes_ND.shape[1]
        for step in _down_to(decay, task.settings.first_decay) if few else [decay]:
            decay_P = torch.full((len(distinct),), step)
            heads_DPK = fit_heads(task.axes_ND, labels_N1K, used_NP, decay_P, heads_DPK, passes=passes, tolerance=1e-3)
        return heads_DPK[:, [distinct.index(folds) for folds in left_out]].contiguous()

    def move_targets(self) -> None:
        """Set t <- r and w = max t. For each fold f, targets and V are computed from the other folds only."""
        task = self.task
        for outer in range(task.folds):
            predicted_NK = torch.zeros(len(task.labels_N), task.num_classes)
            for head, (of, _) in enumerate(self.pairs):
                if of == outer:
                    rows = self.moved_by[head]
                    predicted_NK[rows] = (task.axes_ND[rows] @ self.heads_DPK[:, head]).softmax(1)
            others = task.fold_N != outer
            predicted_nK, labels_n, fold_n = predicted_NK[others], task.labels_N[others], task.fold_N[others]
            transition = self.update(predicted_nK, labels_n, fold_n, self.transitions[outer])
            self.transitions[outer] = transition
            for piece, rows_nK in posterior_pieces(predicted_NK, task.labels_N, transition.matrix_KK):  # 0 in fold f
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
        """Fit the outer heads. Also return the cross entropy of their predictions with the targets from other folds."""
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
            given_nK = self.targets_NFK[piece].float().sum(1) / (task.folds - 1)  # the table of the sample's fold is 0
            losses_N[piece] = -(given_nK * log_NK[piece]).sum(1)
        return heads_DFK, losses_N


def _best_decay(
    fit: Callable[[float, Tensor], tuple[Tensor, Tensor]], first: float, factors: tuple[float, ...], start_DPK: Tensor
) -> tuple[float, Tensor]:
    """Search for the weight decay with the smallest held-out loss, and return it with its heads.

    `first` is divided by each of `factors` in turn while the loss decreases. If the first division does not help, it is
    multiplied instead. A smaller decay must reduce the loss by more than the standard error of the difference.
    """
    best_decay, (best_DPK, least_N) = first, fit(first, start_DPK)
    for down in (True, False):
        for factor in factors:
            decay = first / factor if down else first * factor
            heads_DPK, losses_N = fit(decay, best_DPK)
            gain_N = least_N - losses_N
            standard_error = gain_N.std(correction=0).item() / len(gain_N) ** 0.5 if down else 0.0
            if not gain_N.mean().item() > standard_error:
                break
            best_decay, best_DPK, least_N = decay, heads_DPK, losses_N
        if best_decay != first:
            break
    return best_decay, best_DPK


def _down_to(decay: float, first: float) -> list[float]:
    return [first / factor for factor in (1.0, *_FACTORS) if first / factor > 1.01 * decay] + [decay]


def fit_head(axes_ND: Tensor, targets_NK: Tensor, decay: float) -> Tensor:
    """Fit a head (D×K) to the targets of all samples, each weighted by the largest entry of its target."""
    head_D1K = torch.zeros(axes_ND.shape[1], 1, targets_NK.shape[1])
    for step in _down_to(decay, CrossFitting.first_decay):
        head_D1K = fit_heads(
            axes_ND, targets_NK.unsqueeze(1), targets_NK.amax(1, keepdim=True).float(), torch.tensor([step]), head_D1K,
            passes=_FINAL_PASSES,
        )  # fmt: skip
    return head_D1K.squeeze(1)


def one_hot(labels_N: Tensor, num_classes: int) -> Tensor:
    table_NK = torch.zeros(len(labels_N), num_classes, dtype=torch.float16)
    return table_NK.scatter_(1, labels_N.unsqueeze(1), 1.0)
