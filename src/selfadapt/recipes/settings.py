"""The settings of a run, as frozen data that goes into run.json and comes back the same."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

import torch

from selfadapt.data.corruption import Noise, actual_rate
from selfadapt.data.samples import VALIDATION_FRACTION, Data
from selfadapt.data.sources import SOURCES
from selfadapt.engine.fit import FitSettings, Precision
from selfadapt.engine.optim import OptimizerName, OptimizerSettings
from selfadapt.errors import UserError
from selfadapt.objectives.objective import Objective
from selfadapt.objectives.start import AutoStart
from selfadapt.recipes.methods import METHODS, Choices

SMALL_SET = 5_000  # training samples
ASSUMED_NOISE = 0.2  # for a method that must be told the noise rate and is not
_LEFT_OPEN = {"batch_size", "weight_decay", "momentum", "start_epoch", "noise_rate", "augment"}
_OF_ONE_METHOD = {"noise_rate": "co-teaching", "reward": "deep-gamblers", "coverage": "selective-net"}
DEVICES = ("cpu", "cuda", "mps", "xpu")


@dataclass(frozen=True, kw_only=True)
class Settings(ABC):
    """What a run of any kind has: data, a network, and how it is trained. What is None is chosen by `resolved`."""

    known_methods: ClassVar[tuple[str, ...]]
    another_kind: ClassVar[str]  # what to say of a run whose settings are not of this kind

    data: str
    method: str = "sat"
    seed: int = 0
    epochs: int
    batch_size: int | None = None
    optimizer: OptimizerName = "sgd"
    lr: float = 0.1
    weight_decay: float | None = None
    warmup_epochs: float | None = None
    targets: str = "float32"
    model: str
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
        for name in (
            "epochs",
            "batch_size",
            "pieces",
            "hidden",
            "dimensions",
            "queue",
            "image_size",
            "limit",
            "test_limit",
        ):
            value = getattr(self, name, None)
            if value is not None and value < 1:
                raise UserError(f"{option(name)} {value} must be at least 1")
        for name in ("lr", "weight_decay", "warmup_epochs"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise UserError(f"{option(name)} {value} must be a number from 0 on")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"--seed {self.seed} must be a whole number from 0 on, of 63 bits")
        choices = {"method": self.known_methods, "optimizer": get_args(OptimizerName), "precision": get_args(Precision)}
        for name, known in choices.items():
            value = getattr(self, name)
            if value not in known:
                raise UserError(f"{option(name)} {value!r} is not known; choose one of {', '.join(known)}")

    @classmethod
    def given(cls, **settings: Any) -> Self:
        """Settings as a user gives them, with paths and noise brought to one form."""
        return cls(**normal_form(settings))

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        known = {field.name for field in fields(cls)}
        if ("views" in content) != ("views" in known):
            raise UserError(cls.another_kind)
        unknown = sorted(set(content) - known)
        if unknown:
            raise UserError(f"the run was made with settings that this version does not know: {', '.join(unknown)}")
        return cls(**content)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def differs(self, given: Mapping[str, Any]) -> str | None:
        """The name of a given setting that these were not made with, if there is one."""
        changed = (name for name, value in given.items() if getattr(self, name) != value)
        return next((name for name in changed if not self.is_unused(name, given[name])), None)

    def is_unused(self, name: str, value: Any) -> bool:
        """Whether a setting that a user repeats decides nothing here."""
        return False

    @abstractmethod
    def fit(self) -> FitSettings: ...


@dataclass(frozen=True, kw_only=True)
class RunSettings(Settings):
    """Everything that decides the outcome of a run with labels."""

    known_methods = tuple(METHODS)
    another_kind = "this is a run without labels (selfadapt pretrain); evaluate it with: selfadapt probe"

    labels: str | None = None
    noise: str | None = None
    epochs: int = 60
    pieces: int = 1
    warmup_epochs: float = 0.0
    schedule: str = "cosine"
    momentum: float | None = None
    start_epoch: int | Literal["auto"] | None = None
    noise_rate: float | None = None
    reward: float = 2.2
    coverage: float = 0.8
    model: str = "resnet-small"
    dropout: float = 0.0
    validation: float = VALIDATION_FRACTION
    pretrained: str | None = None
    label_share: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("momentum", "noise_rate", "coverage"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise UserError(f"{option(name)} {value} must be within 0..1")
        if self.label_share is not None and not 0 < self.label_share <= 1:
            raise UserError(f"--label-share {self.label_share} must be above 0 and at most 1")
        if not 0 <= self.dropout < 1:
            raise UserError(f"--dropout {self.dropout} must be a share of the features, from 0 to below 1")
        if not 0 <= self.validation < 1:
            raise UserError(f"--validation {self.validation} must be a share of the samples, from 0 to below 1")
        if not 1 < self.reward < float("inf"):
            raise UserError(f"--reward {self.reward} must be above 1, and at most the number of classes")
        parse_schedule(self.schedule, self.epochs)
        if self.method == "elr" and "topk" in self.targets:
            raise UserError(f"--targets {self.targets} cannot keep the targets of elr, which start at nothing")
        self._check_start()

    def _check_start(self) -> None:
        if self.start_epoch is None or self.start_epoch == "auto":
            return
        if self.start_epoch < 0:
            raise UserError(f"--start-epoch {self.start_epoch} must be auto or a whole number from 0 on")
        if self.adaptive and self.start_epoch >= self.epochs:
            raise UserError(
                f"--start-epoch {self.start_epoch} is not before the end, epoch {self.epochs}: no target would move"
            )

    def resolved(self, data: Data) -> "RunSettings":
        """These settings with what was left open chosen for the data and the machine.

        Large sets take the paper's values for CIFAR. A small set has so few steps in an epoch, and is learned by
        heart so soon, that it wants smaller batches and a stronger decay.
        """
        batch_size, weight_decay = (256, 5e-4) if len(data.train) >= SMALL_SET else (64, 5e-3)
        noise_rate = self.noise_rate
        if noise_rate is None and self.noise is not None:
            noise_rate = actual_rate(data.train)
        return replace(
            self,
            batch_size=self.batch_size or batch_size,
            weight_decay=weight_decay if self.weight_decay is None else self.weight_decay,
            momentum=METHODS[self.method].momentum if self.momentum is None else self.momentum,
            start_epoch=self._start() if self.adaptive else None,
            noise_rate=(ASSUMED_NOISE if noise_rate is None else noise_rate) if self.method == "co-teaching" else None,
            augment=self.augment or data.augment,
            device=device_name(self.device),
        )

    def is_unused(self, name: str, value: Any) -> bool:
        of_another = _OF_ONE_METHOD.get(name, self.method) != self.method
        return super().is_unused(name, value) or of_another or (name == "start_epoch" and not self.adaptive)

    def whole(self) -> dict[str, Any]:
        """Every setting but those left open."""
        return {name: value for name, value in asdict(self).items() if value is not None or name not in _LEFT_OPEN}

    @property
    def adaptive(self) -> bool:
        return METHODS[self.method].adaptive

    def _start(self) -> int | Literal["auto"] | None:
        return METHODS[self.method].start_epoch if self.start_epoch is None else self.start_epoch

    def objective(self) -> Objective:
        choices = Choices(
            start_epoch=start if isinstance(start := self._start(), int) else AutoStart(seed=self.seed),
            momentum=METHODS[self.method].momentum if self.momentum is None else self.momentum,
            noise_rate=ASSUMED_NOISE if self.noise_rate is None else self.noise_rate,
            reward=self.reward,
            coverage=self.coverage,
        )
        return METHODS[self.method].make(choices)

    def fit(self) -> FitSettings:
        assert self.weight_decay is not None
        return FitSettings(
            epochs=self.epochs,
            pieces=self.pieces,
            optimizer=OptimizerSettings(
                name=self.optimizer,
                lr=self.lr,
                weight_decay=self.weight_decay,
                warmup_epochs=self.warmup_epochs,
                **parse_schedule(self.schedule, self.epochs),
            ),
            precision=self.precision,
            compile=self.compile,
        )


def parse_schedule(text: str, epochs: int) -> dict[str, Any]:
    """How the learning rate falls: cosine, constant, halve:EVERY or tenth:AFTER,AFTER…, in epochs."""
    kind, _, numbers = text.partition(":")
    if text in ("cosine", "constant"):
        return {"schedule": text}
    try:
        given = tuple(int(number) for number in numbers.split(","))
        if kind == "halve" and len(given) == 1 and given[0] > 0:
            return {"schedule": "step", "gamma": 0.5, "milestones": tuple(range(given[0], epochs, given[0]))}
        if kind == "tenth" and min(given) > 0:
            return {"schedule": "step", "gamma": 0.1, "milestones": given}
    except ValueError:
        pass
    raise UserError(f"--schedule {text!r} is none of cosine, constant, halve:25 (every 25 epochs), tenth:75,90")


def normal_form(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings with absolute paths, numbers for words and the noise as it is printed, to be compared."""
    result = dict(settings)
    start_epoch = result.get("start_epoch")
    if isinstance(start_epoch, str) and start_epoch != "auto":
        try:
            result["start_epoch"] = int(start_epoch)
        except ValueError:
            raise UserError(f"--start-epoch {start_epoch!r} is neither auto nor a whole number") from None
    for name in ("data", "labels", "pretrained"):
        path = result.get(name)
        if path is not None and path not in SOURCES and Path(path).exists():
            result[name] = str(Path(path).resolve())
    if result.get("noise") is not None:
        result["noise"] = str(Noise.parse(result["noise"]).resolved())
    return result


def option(name: str) -> str:
    """What a user calls a setting."""
    return "DATA" if name == "data" else "--" + name.replace("_", "-")


def device_name(name: str) -> str:
    return choose_device(name).type if name == "auto" else name


def choose_device(name: str) -> torch.device:
    """The device of this name; of several processes on a machine each takes its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
        if device.type in DEVICES:
            return device
    except (RuntimeError, AssertionError):
        pass
    raise UserError(f"--device {name!r} cannot be used here; choose auto or cpu")
