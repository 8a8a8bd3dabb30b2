"""Settings of a transfer: what the user gave, and the plan with every value set.

The C4 detector and the FCN follow the protocol of Table 10 (He et al., 2020) by default; the detector with a feature
pyramid is quicker. Sizes and learning rates are options, because VOC at full size needs GPUs.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from selfadapt.core.errors import UserError
from selfadapt.core.settings import check_settings, setting

Task = Literal["detection", "segmentation"]
Detector = Literal["pyramid", "c4"]


_DEFAULTS: dict[str, dict[str, Any]] = {  # by network
    "pyramid": {"epochs": 26, "batch_size": 4, "lr": 0.01, "image_size": 480, "milestones": ()},
    "c4": {"steps": 24_000, "batch_size": 16, "lr": 0.02, "image_size": 800, "milestones": (18 / 24, 22 / 24)},
    "fcn": {"steps": 30_000, "batch_size": 16, "lr": 0.003, "image_size": 513, "milestones": (0.7, 0.9)},
}


@dataclass(frozen=True, kw_only=True)
class TransferSettings:
    """What the user gave; None is the default of the network."""

    task: Task = setting("detection", "Task: detection (Faster R-CNN) or segmentation (FCN)")
    detector: Detector = setting(
        "pyramid", "Detector: pyramid (feature pyramid, faster) or c4 (one feature map, as in Table 10 of the paper)"
    )
    steps: int | None = setting(None, "Training steps", least=1, unset="24,000 for c4, 30,000 for segmentation")
    epochs: int | None = setting(None, "Epochs, instead of steps", least=1, unset="26 for pyramid")
    batch_size: int | None = setting(None, "Images per step", least=1, unset="4 for pyramid, else 16")
    lr: float | None = setting(
        None, "Peak learning rate", above=0, unset="0.01 for pyramid, 0.02 for c4, 0.003 for segmentation"
    )
    image_size: int | None = setting(
        None,
        "Detection: shorter side at test time; training uses 0.6 to 1 of it for c4. Segmentation: size of the crops",
        least=1,
        unset="480 for pyramid, 800 for c4, 513 for segmentation",
    )
    scratch: bool = setting(False, "Train from scratch, for comparison")
    seed: int = setting(0, "Random seed")
    regions: int = 512  # per image, for the head of C4 in a step
    weight_decay: float = 1e-4

    def __post_init__(self) -> None:
        check_settings(self)
        if self.task == "segmentation" and self.detector != "pyramid":
            raise UserError(f"--detector {self.detector} is for detection; leave it out")
        if self.steps is not None and self.epochs is not None:
            raise UserError("give --steps or --epochs, not both")

    def resolved(self) -> "TransferPlan":
        """The plan, with the defaults of the network."""
        defaults = _DEFAULTS["fcn" if self.task == "segmentation" else self.detector]
        if self.steps is not None or self.epochs is not None:
            defaults = {**defaults, "steps": None, "epochs": None}
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return TransferPlan(**{**defaults, **given})


@dataclass(frozen=True, kw_only=True)
class TransferPlan(TransferSettings):
    """The settings with every value chosen; one of `steps` and `epochs` is."""

    batch_size: int
    lr: float
    image_size: int
    milestones: tuple[float, ...]  # fractions of all steps at which lr is divided by 10; none: linear decay

    @property
    def name(self) -> str:
        """Key of the result: the task, the detector unless it is the default, and whether weights were random."""
        kind = self.detector if self.task == "detection" and self.detector != "pyramid" else ""
        return " ".join(word for word in (self.task, kind, "scratch" if self.scratch else "") if word)

    def total(self, images: int) -> int:
        """Number of steps."""
        return self.steps or -(-(self.epochs or 0) * images // self.batch_size)

    def rate(self, done: int, total: int) -> float:
        """Learning rate of the step after `done` steps."""
        from selfadapt.engine.optim import OptimizerSettings, learning_rate  # imports torch

        if not self.milestones:
            return self.lr * min((done + 1) / max(1, total // 10), 1 - done / total)
        shape = OptimizerSettings(
            lr=self.lr,
            schedule="step",
            milestones=tuple(round(share * total) for share in self.milestones),
            warmup_epochs=min(100, total // 10),
            warmup_from=self.lr / 1000,
        )
        return learning_rate(shape, done, total)
