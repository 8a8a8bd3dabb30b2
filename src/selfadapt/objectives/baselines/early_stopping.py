"""Early stopping on noisy validation labels.

The result is the network with the highest accuracy on validation labels, which are as noisy as the training labels.
Training runs to the last epoch, so the patience is unlimited.

Paper: Prechelt, "Early Stopping - But When?", 1998.
When to use it: as a strong and free baseline, where a validation split exists.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from selfadapt.core.errors import UserError
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.method import Task
from selfadapt.objectives.objective import Metrics


@dataclass(frozen=True, kw_only=True)
class EarlyStopping(ERM):
    description = "ordinary training, stopped early on noisy validation"
    paper = "Prechelt, Early Stopping - But When?, 1998"
    needs = "a validation split"
    result = "best epoch on validation"
    uses_up_validation = True

    def suited(self, task: Task) -> Self:
        if not task.has_validation:
            raise UserError("early-stopping needs a validation split, which these data do not have")
        return self

    def keeps(self, history: Sequence[Metrics]) -> bool:
        *earlier, last = (metrics["validation_accuracy_given"] for metrics in history)
        return last > max(earlier, default=-1.0)
