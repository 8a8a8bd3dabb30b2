"""Empirical risk minimisation: ordinary training with cross entropy on the labels as given.

    L = -1/B  sum_i  log p_i[y_i],    p_i = softmax(f(x_i))

Shapes: B samples of a batch, K classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from selfadapt.core.settings import check_settings
from selfadapt.data.batch import Batch
from selfadapt.models.heads import Backbone, Classifier, learning_rate_scales
from selfadapt.objectives.method import AttackAfterEpoch, Bench, Task, Trained
from selfadapt.objectives.objective import Evidence, Loss, Metrics, Progress
from selfadapt.targets.store import Storage, TargetStore


def label_loss(logits_BK: Tensor, labels_B: Tensor) -> Loss:
    """Cross entropy with the labels, every sample with weight one."""
    logits_BK = logits_BK.float()
    total = cross_entropy(logits_BK, labels_B, reduction="sum")
    return Loss.of(total, torch.full_like(total, len(labels_B)).detach(), logits_BK)


@dataclass(frozen=True, kw_only=True)
class ERM:
    """Ordinary training, and the common ground of methods that differ from it in a part only."""

    description: ClassVar[str] = "ordinary training"
    paper: ClassVar[str] = "Vapnik, Principles of Risk Minimization for Learning Theory, 1991"
    needs: ClassVar[str] = ""
    result: ClassVar[str] = "last epoch"
    settles: ClassVar[bool] = False
    abstains: ClassVar[bool] = False
    views: ClassVar[int] = 1
    uses_up_validation: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_settings(self)

    def suited(self, task: Task) -> Self:
        return self

    def train(self, bench: Bench) -> Trained:
        return bench.fit("main", self)

    def summary(self) -> str:
        return ""

    def attack_after(self, epoch: int) -> AttackAfterEpoch | None:
        return None

    def build(self, backbone: Backbone, num_classes: int) -> nn.Module:
        return Classifier(backbone, num_classes)

    def parameter_groups(self, model: nn.Module, lr: float) -> list[dict[str, Any]]:
        groups: dict[float, list[nn.Parameter]] = {}
        for parameter, scale in learning_rate_scales(model).items():
            if parameter.requires_grad:
                groups.setdefault(scale, []).append(parameter)
        # What learns faster than the rest is not decayed, for decay grows with the rate.
        without: dict[str, float] = {"weight_decay": 0.0}
        return [{"params": own, "lr_scale": scale, **(without if scale > 1 else {})} for scale, own in groups.items()]

    def initial_targets(self, labels_N: Tensor, num_classes: int, storage: Storage) -> TargetStore | None:
        return None

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        return self.loss_of(model(batch.input).float(), batch, progress)

    def loss_of(self, logits_BK: Tensor, batch: Batch, progress: Progress) -> Loss:
        """The loss as a function of the outputs."""
        return label_loss(logits_BK, batch.label)

    def after_step(self, model: nn.Module, progress: Progress) -> None:
        pass

    def keeps(self, history: Sequence[Metrics]) -> bool:
        return False

    def started(self, history: Sequence[Metrics], epochs: int) -> int | None:
        return None

    def evidence(self, progress: Progress) -> Evidence | None:
        return None

    def selectors(self, outputs_NO: Tensor, num_classes: int) -> Mapping[str, Tensor]:
        return {}

    def trained_for(self) -> float | None:
        return None
