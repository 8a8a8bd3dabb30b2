"""Self-Adaptive Training: keep a target for every sample, move it towards the predictions, train on it.

The names below are imported on first use, so that the command line starts without waiting for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from selfadapt.data.indexed import with_index
    from selfadapt.estimator import SelfAdaptiveClassifier
    from selfadapt.evaluation.label_errors.report import LabelErrorReport
    from selfadapt.label_errors import find_label_errors
    from selfadapt.loops.selective_loss import SelectiveLoss
    from selfadapt.loops.self_supervised_loss import SelfSupervisedLoss
    from selfadapt.objectives.self_adaptive_loss import self_adaptive_cross_entropy
    from selfadapt.own_loop import SelfAdaptiveLoss
    from selfadapt.targets.store import Storage, TargetStore
    from selfadapt.trained_run import TrainedRun, open_run, train

__version__ = "1.0.0"
__all__ = [
    "LabelErrorReport",
    "SelectiveLoss",
    "SelfAdaptiveClassifier",
    "SelfAdaptiveLoss",
    "SelfSupervisedLoss",
    "Storage",
    "TargetStore",
    "TrainedRun",
    "__version__",
    "find_label_errors",
    "open_run",
    "self_adaptive_cross_entropy",
    "train",
    "with_index",
]

_HOMES = {
    "LabelErrorReport": "selfadapt.evaluation.label_errors.report",
    "SelectiveLoss": "selfadapt.loops.selective_loss",
    "SelfAdaptiveClassifier": "selfadapt.estimator",
    "SelfAdaptiveLoss": "selfadapt.own_loop",
    "SelfSupervisedLoss": "selfadapt.loops.self_supervised_loss",
    "Storage": "selfadapt.targets.store",
    "TargetStore": "selfadapt.targets.store",
    "TrainedRun": "selfadapt.trained_run",
    "find_label_errors": "selfadapt.label_errors",
    "open_run": "selfadapt.trained_run",
    "train": "selfadapt.trained_run",
    "self_adaptive_cross_entropy": "selfadapt.objectives.self_adaptive_loss",
    "with_index": "selfadapt.data.indexed",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'selfadapt' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
