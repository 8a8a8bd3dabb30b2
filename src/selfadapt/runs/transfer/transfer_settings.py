"""Settings of a transfer: what the user gave, and the plan with every value set.

The C4 detector and the FCN follow the protocol of Table 10 (He et al., 2020) by default; the detector with a feature
pyramid is quicker. Sizes and learning rates are options, because VOC at full size needs GPUs.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from selfadapt.core.errors import UserError
from selfadapt.engine.optim import OptimizerSettings, learning_rate

Task = Literal["detection", "segmentation"]
Detector = Literal["pyramid", "c4"]


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """The defaults of a network."""

    steps: int | None = None
    epochs: int | None = None
    batch_size: int
    lr: float
    image_size: int
    milestones: tuple[float, ...] = ()  # fractions of all steps at which lr is divided by 10; none: linear decay


_PROTOCOLS = {
    "pyramid": Protocol(epochs=26, batch_size=4, lr=0.01, image_size=480),
    "c4": Protocol(steps=24_000, batch_size=16, lr=0.02, image_size=800, milestones=(18 / 24, 22 / 24)),
    "fcn": Protocol(steps=30_000, batch_size=16, lr=0.003, image_size=513, milestones=(0.7, 0.9)),
}


@dataclass(frozen=True, kw_only=True)
class TransferPlan:
    task: Task
    detector: Detector
    steps: int | None  # one of `steps` and `epochs` is given
    epochs: int | None
    batch_size: int
    lr: float
    image_size: int
    regions: int
    weight_decay: float
    scratch: bool
    seed: int

    @property
    def milestones(self) -> tuple[float, ...]:
        return _protocol(self.task, self.detector).milestones

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


@dataclass(frozen=True, kw_only=True)
class TransferSettings:
    """What the user gave; None is the default of the network."""

    task: Task
    detector: Detector = "pyramid"
    steps: int | None = None
    epochs: int | None = None  # instead of steps
    batch_size: int | None = None
    lr: float | None = None
    image_size: int | None = None  # detection: shorter side at test; segmentation: side of the crops
    regions: int = 512  # per image, for the head of C4 in a step
    weight_decay: float = 1e-4
    scratch: bool = False  # start from random weights, for comparison
    seed: int = 0

    def resolved(self) -> TransferPlan:
        """The plan, with the defaults of the network.

        Raises:
            UserError: If a value is wrong, or two of them exclude each other.
        """
        for name, known in (("task", ("detection", "segmentation")), ("detector", ("pyramid", "c4"))):
            if getattr(self, name) not in known:
                raise UserError(f"--{name} {getattr(self, name)!r} is not known; choose {' or '.join(known)}")
        if self.task == "segmentation" and self.detector != "pyramid":
            raise UserError(f"--detector {self.detector} is for detection; leave it out")
        if self.steps is not None and self.epochs is not None:
            raise UserError("give --steps or --epochs, not both")
        default, has_length = _protocol(self.task, self.detector), self.steps is not None or self.epochs is not None
        given: dict[str, Any] = {name: value for name, value in asdict(self).items() if value is not None}
        plan = TransferPlan(
            **{
                "steps": None if has_length else default.steps,
                "epochs": None if has_length else default.epochs,
                "batch_size": default.batch_size,
                "lr": default.lr,
                "image_size": default.image_size,
                **given,
            }
        )
        for name in ("steps", "epochs", "batch_size", "image_size", "regions"):
            if (value := getattr(plan, name)) is not None and value < 1:
                raise UserError(f"--{name.replace('_', '-')} {value} must be at least 1")
        if not 0 < plan.lr < float("inf"):
            raise UserError(f"--lr {plan.lr} must be a number above 0")
        return plan


def _protocol(task: Task, detector: Detector) -> Protocol:
    return _PROTOCOLS["fcn" if task == "segmentation" else detector]
