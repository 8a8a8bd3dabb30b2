"""Self-Adaptive Training: keep a target for every sample, move it towards the predictions, train on it.

The names below are imported on first use, so that the command line starts without waiting for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from selfadapt.estimator import SelfAdaptiveClassifier
    from selfadapt.evaluation.label_errors.report import LabelErrorReport
    from selfadapt.label_errors import find_label_errors
    from selfadapt.objectives.self_adaptive_loss import self_adaptive_cross_entropy
    from selfadapt.own_loop import SelfAdaptiveLoss
    from selfadapt.targets.store import Storage, TargetStore

__version__ = "0.1.0"
__all__ = [
    "LabelErrorReport",
    "SelfAdaptiveClassifier",
    "SelfAdaptiveLoss",
    "Storage",
    "TargetStore",
    "__version__",
    "find_label_errors",
    "self_adaptive_cross_entropy",
]

_HOMES = {
    "LabelErrorReport": "selfadapt.evaluation.label_errors.report",
    "SelfAdaptiveClassifier": "selfadapt.estimator",
    "SelfAdaptiveLoss": "selfadapt.own_loop",
    "Storage": "selfadapt.targets.store",
    "TargetStore": "selfadapt.targets.store",
    "find_label_errors": "selfadapt.label_errors",
    "self_adaptive_cross_entropy": "selfadapt.objectives.self_adaptive_loss",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'selfadapt' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
