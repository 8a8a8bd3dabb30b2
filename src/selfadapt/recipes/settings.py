"""The settings of a run, as frozen data that goes into run.json and comes back the same."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

import torch

from selfadapt.data.corruption import Noise
from selfadapt.data.samples import Data
from selfadapt.data.sources import SOURCES
from selfadapt.engine.fit import FitSettings, Precision
from selfadapt.engine.optim import OptimizerName, OptimizerSettings
from selfadapt.errors import UserError
from selfadapt.objectives.erm import ERM
from selfadapt.objectives.noisy_labels import NoisyLabels
from selfadapt.objectives.objective import Objective

METHODS = ("erm", "sat")
SMALL_SET = 5_000  # training samples
START_FRACTION = 0.3  # the paper's E_s = 60 of 200 epochs
DEVICES = ("cpu", "cuda", "mps", "xpu")


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Everything that decides the outcome of a run. What is None is chosen by `resolved`."""

    data: str
    method: str = "sat"
    labels: str | None = None
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
    image_size: int | None = None
    augment: str | None = None
    stream: bool = False
    device: str = "auto"
    precision: Precision = "float32"
    compile: bool = False
    limit: int | None = None
    test_limit: int | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "pieces", "image_size", "limit", "test_limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{option(name)} {value} must be at least 1")
        for name in ("lr", "weight_decay", "warmup_epochs", "start_epoch"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise UserError(f"{option(name)} {value} must be a number from 0 on")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"--seed {self.seed} must be a whole number from 0 on, of 63 bits")
        choices = {"method": METHODS, "optimizer": get_args(OptimizerName), "precision": get_args(Precision)}
        for name, known in choices.items():
            value = getattr(self, name)
            if value not in known:
                raise UserError(f"{option(name)} {value!r} is not known; choose one of {', '.join(known)}")
        if not 0 <= self.momentum <= 1:
            raise UserError(f"--momentum {self.momentum} must be within 0..1")
        if self.method != "erm" and self.start_epoch is not None and self.start_epoch >= self.epochs:
            raise UserError(
                f"--start-epoch {self.start_epoch} is not before the end, epoch {self.epochs}: no target would move"
            )

    @classmethod
    def given(cls, **settings: Any) -> "RunSettings":
        """Settings as a user gives them, with paths and noise brought to one form."""
        return cls(**normal_form(settings))

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "RunSettings":
        unknown = sorted(set(content) - {field.name for field in fields(cls)})
        if unknown:
            raise UserError(f"the run was made with settings that this version does not know: {', '.join(unknown)}")
        return cls(**content)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def resolved(self, data: Data) -> "RunSettings":
        """These settings with what was left open chosen for the data and the machine.

        Large sets take the paper's values for CIFAR. A small set has so few steps in an epoch, and is learned by
        heart so soon, that it wants smaller batches and a stronger decay.
        """
        batch_size, weight_decay = (256, 5e-4) if len(data.train) >= SMALL_SET else (64, 5e-3)
        start_epoch = round(START_FRACTION * self.epochs) if self.start_epoch is None else self.start_epoch
        return replace(
            self,
            batch_size=self.batch_size or batch_size,
            weight_decay=weight_decay if self.weight_decay is None else self.weight_decay,
            start_epoch=None if self.method == "erm" else start_epoch,
            augment=self.augment or data.augment,
            device=str(choose_device(self.device)),
        )

    def objective(self) -> Objective:
        if self.start_epoch is None:
            return ERM()
        return NoisyLabels(start_epoch=self.start_epoch, momentum=self.momentum)

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


def normal_form(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings with absolute paths and the noise as it is printed, so that they can be compared."""
    result = dict(settings)
    for name in ("data", "labels"):
        path = result.get(name)
        if path is not None and path not in SOURCES and Path(path).exists():
            result[name] = str(Path(path).resolve())
    if result.get("noise") is not None:
        result["noise"] = str(Noise.parse(result["noise"]).resolved())
    return result


def option(name: str) -> str:
    """What a user calls a setting."""
    return "DATA" if name == "data" else "--" + name.replace("_", "-")


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
        if device.type in DEVICES:
            return device
    except (RuntimeError, AssertionError):
        pass
    raise UserError(f"--device {name!r} cannot be used here; choose auto or cpu")
