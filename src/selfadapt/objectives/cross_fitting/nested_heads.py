"""Softmax heads by nested folds: targets that move to the posterior, by heads that did not see the label.

Algorithm 1 of the paper with two changes. The prediction comes from a head that did not see the label (cross-fitting),
and the target moves to what prediction *and* label say together:

    q_i  = softmax(h(x_i)),  h fitted without the fold of i
    r_ik ∝ q_ik V[k, y_i],   V[k, j] = P(given j | true k)        (objectives/cross_fitting/transition.py)
    t_i <- r_i,  w_i = max_k t_ik,  and h is fitted again, from where it stopped
    L    = 1 / (sum_i w_i)  sum_i w_i sum_k -t_ik log softmax(h(x_i))_k  +  decay / 2 |h|^2

Folds alone are not enough. From the second round on a head would learn targets that other heads moved, which saw the
very label it is to judge, and would agree with it more than chance. So folds are nested: to judge fold f the whole of
the above is done with the other folds alone. Its inner heads leave out f and one fold g more and move the targets of g;
its outer head learns the moved targets and is the only one that is asked about f. All inner heads, and all outer heads,
are fitted at once (models/linear/softmax_regression.py).

Decay is chosen twice, without a clean label: first by the likelihood of the given labels under q, then, when targets
have moved, by the likelihood of the targets that other folds' heads gave a sample. Where labels were noisy the second
is smaller.

No momentum is needed (alpha = 0): what the moving average does for targets that follow their own predictions, the
folds do here.

Shapes: N samples, F folds, P inner heads, D axes, K classes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from selfadapt.core.progress import ProgressCallback
from selfadapt.models.linear.softmax_regression import PrincipalAxes, fit_heads, pieces_of
from selfadapt.objectives.cross_fitting.transition import Transition, UpdateTransition, posterior_pieces

_LARGE = 4e10  # numbers multiplied in one pass above which inner folds are joined
_MOST_AXES = 256  # that heads by folds are fitted on; the kernel's discriminant sees what the others carry
_PASSES_OF_LAST = 12
_FEW_FOR_AN_AXIS = 4  # samples
_FACTORS = tuple(10 ** (step / 2) for step in range(1, 11))  # decays tried on the labels, below and above the first
_FINE_FACTORS = (2.0,)  # and on moved targets, which confirm themselves a little the less decay there is


@dataclass(frozen=True, kw_only=True)
class CrossFitting:
    """How to fit heads by nested folds."""

    rounds: int = 7  # in which targets move
    decay: float | None = None  # instead of those that would be chosen
    first_decay: float = 1e-3  # from which the search begins, for samples of mean squared length 1
    passes: int = 4  # over the samples, in a fit that begins where another one stopped
    first_passes: int = 12


_LARGE_SETTINGS = CrossFitting(rounds=4, passes=5, first_passes=10)


def is_large(features_NF: Tensor, fold_N: Tensor, num_classes: int) -> bool:
    """Whether inner folds are joined, to save time."""
    folds = int(fold_N.max()) + 1
    return float(features_NF.shape[0] * min(features_NF.shape) * num_classes * folds * (folds - 1)) > _LARGE


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


@dataclass(frozen=True)
class MovedHeads:
    """Heads fitted to moved targets."""

    predicted_NK: Tensor  # q, by the outer heads
    targets_NFK: Tensor  # that the judge of each fold learns, empty at the samples of that fold
    decay: float


class NestedHeads:
    """Heads by folds, fitted to the labels as they are; `moved` fits them to moved targets."""

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
        order_N = fold_N.argsort(stable=True)  # the samples of a fold stand together, which spares heads that skip it
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

    @property
    def stages(self) -> int:
        """Steps of about the same length that `moved` reports."""
        return self._task.settings.rounds

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

        nothing_DFK = torch.zeros(task.axes_ND.shape[1], task.folds, task.num_classes)
        first, factors = (settings.first_decay, _FACTORS) if settings.decay is None else (settings.decay, ())
        self.plain_decay, self._plain_DFK = _best_decay(fit_labels, first, factors, nothing_DFK)
        self.plain_NK = task.held_out(self._plain_DFK).exp_()[self._back_N]
        self._start_DPK: Tensor | None = None

    def moved(self, update: UpdateTransition, on_progress: ProgressCallback, most: int | None = None) -> MovedHeads:
        """Rounds of moving targets (at most so many) and fitting heads to them, with V as `update` estimates it."""
        task, settings = self._task, self._task.settings
        rounds = min(settings.rounds, most or settings.rounds)
        moved = _Moved(task, update)
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


class _Moved:
    """The targets that each fold's judge learns: those of the other folds, moved by heads that did not see them."""

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
        """Inner heads fitted to the labels as they are (D×P×K). That of f and g is also that of g and f.

        They begin at nothing: every head there is by now has seen the labels of f or of g. Where samples are few for
        the axes they come down from a large decay, as those did by which it was chosen: with little of it from the
        start a head first fits them by their noise, and a convex loss that is nearly flat keeps it there for long.
        """
        task = self.task
        labels_N1K = one_hot(task.labels_N, task.num_classes).unsqueeze(1)
        left_out = [tuple(sorted([outer, *others])) for outer, others in self.pairs]
        distinct = sorted(set(left_out))
        seen_NP = task.without([list(folds) for folds in distinct])
        heads_DPK = self.heads_DPK[:, : len(distinct)]
        passes = task.settings.first_passes
        few = len(task.labels_N) < _FEW_FOR_AN_AXIS * task.axes_ND.shape[1]
        for step in _down_to(decay, task.settings.first_decay) if few else [decay]:
            decay_P = torch.full((len(distinct),), step)
            heads_DPK = fit_heads(task.axes_ND, labels_N1K, seen_NP, decay_P, heads_DPK, passes=passes, tolerance=1e-3)
        return heads_DPK[:, [distinct.index(folds) for folds in left_out]].contiguous()

    def move_targets(self) -> None:
        """t <- r and w = max t, for each f in the other folds' samples; V likewise knows nothing of f."""
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


def fit_head(axes_ND: Tensor, targets_NK: Tensor, decay: float) -> Tensor:
    """A head for these targets of all samples (D×K), each sample weighing as much as its target is sure."""
    head_D1K = torch.zeros(axes_ND.shape[1], 1, targets_NK.shape[1])
    for step in _down_to(decay, CrossFitting.first_decay):
        head_D1K = fit_heads(
            axes_ND, targets_NK.unsqueeze(1), targets_NK.amax(1, keepdim=True).float(), torch.tensor([step]), head_D1K,
            passes=_PASSES_OF_LAST,
        )  # fmt: skip
    return head_D1K.squeeze(1)


def one_hot(labels_N: Tensor, num_classes: int) -> Tensor:
    table_NK = torch.zeros(len(labels_N), num_classes, dtype=torch.float16)
    return table_NK.scatter_(1, labels_N.unsqueeze(1), 1.0)
