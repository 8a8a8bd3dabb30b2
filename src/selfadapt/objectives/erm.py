"""Empirical risk minimisation: training with cross entropy on the given labels.

    L = -1/B  sum_i  log p_i[y_i],    p_i = softmax(f(x_i))

Shapes: B samples of a batch, K classes, N samples in total, O outputs of the network.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from selfadapt.core.settings import check_settings
from selfadapt.data.batch import Batch
from selfadapt.models.backbone import Backbone
from selfadapt.models.heads import Classifier
from selfadapt.objectives.method import AttackAfterEpoch, Bench, Task, Trained
from selfadapt.objectives.objective import Evidence, Loss, Metrics, Progress
from selfadapt.targets.store import Storage, TargetStore


def label_loss(logits_BK: Tensor, labels_B: Tensor) -> Loss:
    """Return the cross entropy with the labels, every sample with weight one."""
    logits_BK = logits_BK.float()
    return Loss.of(cross_entropy(logits_BK, labels_B, reduction="sum"), len(labels_B), logits_BK)


@dataclass(frozen=True, kw_only=True)
class ERM:
    """Empirical risk minimisation, and the base class of the other methods.

    A method with another loss overrides `loss_of`, or `loss_with_targets` if it has targets. One that needs several
    forward passes overrides `loss`.
    """

    description: ClassVar[str] = "ordinary training"
    paper: ClassVar[str] = "Vapnik, Principles of Risk Minimization for Learning Theory, 1991"
    needs: ClassVar[str] = ""
    result: ClassVar[str] = "last epoch"
    solves: ClassVar[bool] = False
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
        """Group the parameters by the product of the `lr_scale` attributes of the modules that contain them."""
        scales = dict.fromkeys(model.parameters(), 1.0)
        for module in model.modules():
            scale = float(getattr(module, "lr_scale", 1.0))
            scales |= {parameter: scale * scales[parameter] for parameter in module.parameters() if scale != 1}
        groups: dict[float, dict[str, Any]] = {}
        for parameter, scale in scales.items():
            if parameter.requires_grad:
                # Weight decay grows with the learning rate, so a higher rate goes without it.
                group = {"params": [], "lr_scale": scale, **({"weight_decay": 0.0} if scale > 1 else {})}
                groups.setdefault(scale, group)["params"].append(parameter)
        return list(groups.values())

    def initial_targets(self, labels_N: Tensor, num_classes: int, storage: Storage) -> TargetStore | None:
        return None

    def before_epoch(
        self, model: nn.Module, samples: Iterable[Batch], targets: TargetStore | None, progress: Progress
    ) -> None:
        pass

    def loss(self, model: nn.Module, batch: Batch, targets: TargetStore | None, progress: Progress) -> Loss:
        logits_BK = model(batch.input).float()
        if targets is None:
            return self.loss_of(logits_BK, batch, progress)
        return self.loss_with_targets(logits_BK, batch, targets, progress)

    def loss_of(self, logits_BK: Tensor, batch: Batch, progress: Progress) -> Loss:
        """Return the loss of a method without targets."""
        return label_loss(logits_BK, batch.label)

    def loss_with_targets(self, logits_BK: Tensor, batch: Batch, targets: TargetStore, progress: Progress) -> Loss:
        """Update the targets and return the loss."""
        return self.loss_of(logits_BK, batch, progress)

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
