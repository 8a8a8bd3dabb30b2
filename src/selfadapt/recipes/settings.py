"""The settings of a run, as frozen data that goes into run.json and comes back the same."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, get_args

from selfadapt.data.corruption import Noise
from selfadapt.engine.fit import FitSettings, Precision
from selfadapt.engine.optim import OptimizerName, OptimizerSettings
from selfadapt.errors import UserError
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.noisy_labels import NoisyLabels
from selfadapt.objectives.objective import Objective

METHODS = ("erm", "sat")
SMALL_SET = 5_000  # training samples
START_FRACTION = 0.3  # the paper's E_s = 60 of 200 epochs


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Everything that decides the outcome of a run."""

    data: str
    method: str = "sat"
    noise: str | None = None
    seed: int = 0
    epochs: int = 60
    batch_size: int | None = None
    pieces: int = 1
    optimizer: OptimizerName = "sgd"
    lr: float = 0.1
    weight_decay: float | None = None
    warmup_epochs: float = 0.0
    momentum: float = 0.9
    start_epoch: int | None = None
    targets: str = "float32"
    model: str = "resnet-small"
    width: int | None = None
    augment: str | None = None
    device: str = "auto"
    precision: Precision = "float32"
    compile: bool = False
    limit: int | None = None
    test_limit: int | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "pieces", "limit", "test_limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{option(name)} {value} must be at least 1")
        for name in ("lr", "weight_decay", "warmup_epochs", "start_epoch", "seed"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise UserError(f"{option(name)} {value} must not be negative")
        for name, choices in (
            ("method", METHODS),
            ("optimizer", get_args(OptimizerName)),
            ("precision", get_args(Precision)),
        ):
            value = getattr(self, name)
            if value not in choices:
                raise UserError(f"{option(name)} {value!r} is not known; choose one of {', '.join(choices)}")
        if not 0 <= self.momentum <= 1:
            raise UserError(f"--momentum {self.momentum} must be within 0..1")
        if self.noise is not None:
            Noise.parse(self.noise)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "RunSettings":
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(content) - known)
        if unknown:
            raise UserError(f"the run was made with settings that this version does not know: {', '.join(unknown)}")
        return cls(**content)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def suited(self, num_samples: int) -> "RunSettings":
        """These settings with what was left open chosen for so many training samples.

        Large sets take the paper's values for CIFAR. A small set has so few steps in an epoch, and is learned by
        heart so soon, that it wants smaller batches and a stronger decay.
        """
        batch_size, weight_decay = (256, 5e-4) if num_samples >= SMALL_SET else (64, 5e-3)
        return replace(
            self,
            batch_size=self.batch_size or batch_size,
            weight_decay=weight_decay if self.weight_decay is None else self.weight_decay,
        )

    @property
    def moving_from(self) -> int | None:
        """The first epoch (from 0) in which the targets move: E_s. None for a method without targets."""
        if self.method == "erm":
            return None
        return round(START_FRACTION * self.epochs) if self.start_epoch is None else self.start_epoch

    def objective(self) -> Objective:
        start = self.moving_from
        return ERM() if start is None else NoisyLabels(start_epoch=start, momentum=self.momentum)

    def fit(self) -> FitSettings:
        assert self.weight_decay is not None
        return FitSettings(
            epochs=self.epochs,
            pieces=self.pieces,
            optimizer=OptimizerSettings(
                name=self.optimizer, lr=self.lr, weight_decay=self.weight_decay, warmup_epochs=self.warmup_epochs
            ),
            precision=self.precision,
            compile=self.compile,
        )


def option(name: str) -> str:
    """The command-line option of a setting."""
    return "--" + name.replace("_", "-")
