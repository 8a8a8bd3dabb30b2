"""Ordinary training, stopped at the right moment as far as noisy labels can tell it.

The network that did best on held-out labels, which are as noisy as the training labels, is the result. Training runs
to its end, so this is early stopping with all the patience there is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from selfadapt.errors import UserError
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.objective import Figures


@dataclass(frozen=True, kw_only=True)
class EarlyStopping(ERM):
    def keeps(self, history: Sequence[Figures]) -> bool:
        if "validation_accuracy_given" not in history[-1]:
            raise UserError("early-stopping needs a validation part, and these data have none")
        *earlier, last = (figures["validation_accuracy_given"] for figures in history)
        return last > max(earlier, default=-1.0)
