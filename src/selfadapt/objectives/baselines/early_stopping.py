"""Ordinary training, stopped at the right moment as far as noisy labels can tell it.

The network that did best on held-out labels, which are as noisy as the training labels, is the result. Training runs
to its end, so this is early stopping with all the patience there is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from selfadapt.core.errors import UserError
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.method import Task
from selfadapt.objectives.objective import Metrics


@dataclass(frozen=True, kw_only=True)
class EarlyStopping(ERM):
    description: ClassVar[str] = "ordinary training, stopped early on noisy validation"
    paper: ClassVar[str] = "Prechelt, Early Stopping - But When?, 1998"
    needs: ClassVar[str] = "a validation part"
    result: ClassVar[str] = "best epoch on validation"
    uses_up_validation: ClassVar[bool] = True

    def suited(self, task: Task) -> Self:
        if not task.has_validation:
            raise UserError("early-stopping needs a validation part, and these data have none")
        return self

    def keeps(self, history: Sequence[Metrics]) -> bool:
        *earlier, last = (metrics["validation_accuracy_given"] for metrics in history)
        return last > max(earlier, default=-1.0)
