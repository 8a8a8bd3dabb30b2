"""The settings of a run without labels, and its methods by name."""

from dataclasses import dataclass, replace
from typing import Any

from selfadapt.data.samples import Data
from selfadapt.engine.fit import FitSettings
from selfadapt.engine.optim import OptimizerSettings
from selfadapt.errors import UserError
from selfadapt.objectives.pretraining.byol import BYOL
from selfadapt.objectives.pretraining.encoders import Pretraining, Ramp
from selfadapt.objectives.pretraining.moco import MoCo
from selfadapt.objectives.pretraining.self_supervised import FixedNoise, RandomNetwork, SelfSupervised
from selfadapt.objectives.pretraining.simclr import SimCLR
from selfadapt.objectives.pretraining.simsiam import SimSiam
from selfadapt.recipes.settings import SMALL_SET, Settings, device_name

METHODS: dict[str, tuple[str, type[Pretraining]]] = {
    "sat": ("self-adaptive training without labels", SelfSupervised),
    "byol": ("BYOL", BYOL),
    "moco": ("MoCo v2", MoCo),
    "simclr": ("SimCLR", SimCLR),
    "simsiam": ("SimSiam", SimSiam),
    "noise": ("fitting fixed noise", FixedNoise),
    "random-network": ("fitting a random network", RandomNetwork),
}
_PROBE_LR_OF_ADAM = 1e-3
_QUEUE = 4096  # keys of MoCo, for data that are large enough
_WARM_UP = 30 / 800  # of the epochs, as in the paper


@dataclass(frozen=True, kw_only=True)
class PretrainingSettings(Settings):
    """Everything that decides the outcome of a run without labels."""

    known_methods = tuple(METHODS)
    another_kind = "this is a run with labels (selfadapt train), not one of `selfadapt pretrain`"

    views: int = 1
    epochs: int = 100
    weight_decay: float = 5e-5
    momentum: str = "0.7"
    beta: str | None = None
    predictor: bool | None = None
    hidden: int = 4096
    dimensions: int = 256
    queue: int | None = None
    model: str = "resnet18"
    augment: str = "self-supervised"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lr == 0:
            raise UserError("--lr 0 must be above 0, or nothing is learned")
        if self.views not in (1, 2):
            raise UserError(f"--views {self.views} must be 1 or 2")
        if self.method == "simclr" and self.views == 1:
            raise UserError("--method simclr contrasts two views of an image; add --views 2")
        if self.predictor is not None and self.method in ("moco", "simclr"):
            raise UserError(f"--method {self.method} has no predictor to switch on or off")
        if self.beta is not None and self.method in ("simclr", "simsiam", "noise", "random-network"):
            raise UserError(f"--method {self.method} has no slow copy of the network, so --beta means nothing to it")
        if self.queue is not None and self.method != "moco":
            raise UserError(f"--method {self.method} has no queue of keys, so --queue means nothing to it")
        parse_ramp("--momentum", self.momentum)
        if self.beta is not None:
            parse_ramp("--beta", self.beta)
        if self.method == "moco" and self.beta is not None and not parse_ramp("--beta", self.beta).end:
            raise UserError("--method moco needs a slow copy of the network; give a --beta above 0")

    def resolved(self, data: Data) -> "PretrainingSettings":
        return replace(
            self,
            queue=self.queue or min(_QUEUE, max(1, len(data.train) // 8)) if self.method == "moco" else None,
            batch_size=self.batch_size or (512 if len(data.train) >= 10 * SMALL_SET else 128),
            warmup_epochs=round(_WARM_UP * self.epochs, 3) if self.warmup_epochs is None else self.warmup_epochs,
            device=device_name(self.device),
        )

    def objective(self) -> Pretraining:
        kind = METHODS[self.method][1]
        chosen: dict[str, Any] = {"hidden": self.hidden, "dimensions": self.dimensions, "lr": self.lr}
        if self.optimizer in ("adam", "adamw"):
            chosen["probe_lr"] = _PROBE_LR_OF_ADAM
        if self.beta is not None:
            chosen["beta"] = parse_ramp("--beta", self.beta)
        if self.predictor is not None:
            chosen["predictor"] = self.predictor
        if kind is SelfSupervised:
            chosen["alpha"] = parse_ramp("--momentum", self.momentum)
        if kind is MoCo and self.queue is not None:
            chosen["queue"] = self.queue
        if kind in (SelfSupervised, FixedNoise):
            chosen["seed"] = self.seed
        return kind(**chosen)

    def fit(self) -> FitSettings:
        assert self.warmup_epochs is not None
        optimizer = OptimizerSettings(
            name=self.optimizer, lr=self.lr, weight_decay=self.weight_decay, warmup_epochs=self.warmup_epochs
        )
        return FitSettings(epochs=self.epochs, optimizer=optimizer, precision=self.precision, compile=self.compile)


def parse_ramp(name: str, text: str) -> Ramp:
    """0.99, or 0.99:1.0 for a number that grows over training."""
    try:
        numbers = [float(number) for number in text.split(":")]
        if len(numbers) in (1, 2) and all(0 <= number <= 1 for number in numbers):
            return Ramp(numbers[0], numbers[-1])
    except ValueError:
        pass
    raise UserError(f"{name} {text!r} must be a number within 0..1, or two as START:END")
