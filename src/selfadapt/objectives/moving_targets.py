"""The base class of methods whose targets start as the labels and move towards the predictions from epoch E_s on.

t_i = one_hot(y_i)                              before epoch E_s (epochs count from 0)
t_i <- alpha t_i + (1 - alpha) p_i              from epoch E_s on
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from torch import Tensor

from selfadapt.core.settings import setting
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.method import Task
from selfadapt.objectives.objective import Evidence, Metrics, Progress
from selfadapt.objectives.start_epoch import AutoStart
from selfadapt.targets.store import Storage, TargetStore


def target_momentum(default: float, description: str = "momentum of the targets (alpha)") -> Any:
    """Declare the field for `--target-momentum`."""
    return setting(default, description, option="--target-momentum", aliases=("--momentum",), least=0, most=1)


@dataclass(frozen=True, kw_only=True)
class MovingTargets(ERM):
    paper = "Huang et al., Self-Adaptive Training: Bridging Supervised and Self-Supervised Learning, 2022"
    default_start: ClassVar[float] = 0.3  # E_s as a share of the epochs

    start_epoch: int | AutoStart | None = None  # E_s, or how to find it
    momentum: float = target_momentum(0.9)
    reweight: bool = True

    def suited(self, task: Task) -> Self:
        if isinstance(self.start_epoch, AutoStart):
            start: int | AutoStart = self.start_epoch.suited(task.num_samples, task.seed)
        else:
            start = self._fixed_start(task.epochs)
            task.check_phase("--start-epoch", start)
        return super(MovingTargets, replace(self, start_epoch=start)).suited(task)

    def _fixed_start(self, epochs: int) -> int:
        return self.start_epoch if isinstance(self.start_epoch, int) else int(self.default_start * epochs)

    def initial_targets(self, labels_N: Tensor, num_classes: int, storage: Storage) -> TargetStore | None:
        return TargetStore.from_labels(labels_N, num_classes, self.momentum, storage)

    def started(self, history: Sequence[Metrics], epochs: int) -> int | None:
        if isinstance(self.start_epoch, AutoStart):
            return self.start_epoch.found(history, epochs)
        return self._fixed_start(epochs)

    def evidence(self, progress: Progress) -> Evidence | None:
        return Evidence(label_share=self._label_share(progress), reweighted=self.reweight)

    def _label_share(self, progress: Progress) -> float:
        """Return the share of each target that is still the given label."""
        start = self.started(progress.history, progress.epochs)
        if start is None:
            return 0.0
        if not isinstance(self.start_epoch, AutoStart):
            return float(self.momentum ** max(0, progress.epoch - start))
        if progress.epoch <= start:  # the store still holds running means of predictions, without the label
            return 0.0
        initial_share = self.start_epoch.label_share(progress.history, start)
        return float(initial_share * self.momentum ** (progress.epoch - start))
