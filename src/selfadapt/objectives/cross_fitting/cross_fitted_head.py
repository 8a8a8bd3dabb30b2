"""Self-adaptive training of a linear head by cross-fitting, as a method. The algorithm is in cross_fit.py.

The network is the head fitted to the targets of all samples. The targets of the run are out-of-sample predictions, and
the network holds the estimated noise transition matrix. The audit uses both.

Shapes: N samples, D values of a vector, A axes, K classes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from selfadapt.core.errors import UserError
from selfadapt.core.progress import ProgressCallback
from selfadapt.core.settings import setting
from selfadapt.models.backbone import Backbone, Normalised, unwrapped
from selfadapt.models.heads import CorrectedClassifier
from selfadapt.objectives.cross_fitting.cross_fit import (
    CrossFitted,
    check_enough,
    check_features,
    check_spread,
    cross_fit,
    deal_assignments,
)
from selfadapt.objectives.cross_fitting.nested_heads import CrossFitting
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.method import Bench, Task, Trained, Vectors
from selfadapt.objectives.noisy_labels import NoisyLabels
from selfadapt.objectives.objective import Evidence, Progress
from selfadapt.targets.store import Storage, TargetStore

_LEAST_FOLDS = 3  # nested folds leave out two folds at a time


@dataclass(frozen=True, kw_only=True)
class SelfAdaptiveFolds(ERM):
    description: ClassVar[str] = "self-adaptive training, cross-validated head"
    paper: ClassVar[str] = NoisyLabels.paper
    needs: ClassVar[str] = "a linear head: photos with --tune head, or vectors"
    result: ClassVar[str] = "fitted head"
    solves: ClassVar[bool] = True

    folds: int = setting(5, "number of cross-validation folds", least=_LEAST_FOLDS)
    rounds: int | None = setting(None, "number of times the targets move", unset="7, or 4 for large data", least=1)
    seed: int = 0

    def suited(self, task: Task) -> Self:
        if not task.linear:
            raise UserError(
                "--method sat-folds fits a linear head: give photos with --tune head, or vectors, or another --method"
            )
        if task.epochs != 1:
            raise UserError("--method sat-folds has no epochs; leave --epochs out, or choose another method")
        return replace(self, seed=task.seed)

    def train(self, bench: Bench) -> Trained:
        return bench.solve("main", self)

    def solve(self, samples: Vectors, model: nn.Module, on_progress: ProgressCallback) -> Tensor:
        values_ND, labels_N, groups_N = samples
        with _as_user_errors():
            check_enough(labels_N)
            check_features(values_ND)
        num_groups = len(labels_N) if groups_N is None else len(groups_N.unique())
        if num_groups < _LEAST_FOLDS:
            raise UserError(f"{num_groups} groups of samples are too few for folds; give at least {_LEAST_FOLDS}")
        fold_RN = deal_assignments(values_ND, labels_N, self.seed, groups_N, min(self.folds, num_groups))
        with _as_user_errors():
            for fold_N in fold_RN:
                check_spread(labels_N, fold_N)
        corrected = unwrapped(model)
        assert isinstance(corrected, CorrectedClassifier)
        settings = None if self.rounds is None else CrossFitting(rounds=self.rounds)
        fitted = cross_fit(values_ND, labels_N, fold_RN, len(corrected.transition_KK), settings, on_progress)
        put_in(corrected, fitted)
        return fitted.predicted_NK

    def build(self, backbone: Backbone, num_classes: int) -> nn.Module:
        return CorrectedClassifier(backbone, num_classes)

    def initial_targets(self, labels_N: Tensor, num_classes: int, storage: Storage) -> TargetStore | None:
        return TargetStore.from_labels(labels_N, num_classes, 0.0, storage)

    def evidence(self, progress: Progress) -> Evidence | None:
        return Evidence(reweighted=True, held_out=True)


@contextmanager
def _as_user_errors() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise UserError(str(error)) from error


@torch.no_grad()
def put_in(model: CorrectedClassifier, fitted: CrossFitted) -> None:
    """Copy the fitted head into a network. The network standardises its inputs, so the weights are rescaled."""
    normalised = model.backbone
    assert isinstance(normalised, Normalised)
    slope_DK = fitted.axes.turn_FD @ fitted.head_DK[:-1]
    model.head.weight.copy_((slope_DK * normalised.std_C11.cpu().unsqueeze(1)).T)
    model.head.bias.copy_((normalised.mean_C11.cpu() - fitted.axes.mean_F) @ slope_DK + fitted.head_DK[-1])
    model.transition_KK.copy_(fitted.noise.matrix_KK)
