"""The plan of a run: every setting that decides its outcome, all of them set. It is what run.json holds.

`plan` (planning.py) makes a plan from a request and from facts about the data. In a plan, None means that there is
none, as in `noise`; it never means that something is still to be chosen.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import torch

from selfadapt.core.errors import UserError
from selfadapt.core.settings import from_plain, plain, setting
from selfadapt.data.inputs import InputSpec
from selfadapt.engine.fit import FitSettings, Precision
from selfadapt.engine.optim import OptimizerSettings
from selfadapt.objectives.method import Method, Task
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.request import Kind, method_class, values_by_name
from selfadapt.runs.config.sections import (
    DataSettings,
    GeneralSettings,
    ModelSettings,
    TrainingSettings,
    parse_schedule,
    parse_shuffle,
)
from selfadapt.targets.store import Storage

_ANOTHER_KIND = {
    "labels": "this is a run with labels (selfadapt train), not one of `selfadapt pretrain`",
    "pretraining": "this is a run without labels (selfadapt pretrain); evaluate it with: selfadapt probe",
}
_COMPILE_BEFORE = {None: "none", False: "none", True: "default"}  # in runs before there were modes


def _check_kind(run: Mapping[str, Any], kind: Kind) -> None:
    own = run["settings"]["kind"]
    if own != kind:
        raise UserError(_ANOTHER_KIND[own])


@dataclass(frozen=True, kw_only=True)
class DataPlan(DataSettings):
    crops: Literal["square", "original"] = setting("square")  # runs that did not record it cut from squares
    augment: str = setting()


@dataclass(frozen=True, kw_only=True)
class ModelPlan(ModelSettings):
    name: str = setting()
    weights: str = setting("none")
    tune: Literal["head", "all"] = setting("all")


@dataclass(frozen=True, kw_only=True)
class TrainingPlan(TrainingSettings):
    epochs: int = setting()
    batch_size: int = setting()
    lr: float = setting()
    weight_decay: float = setting()
    warmup_epochs: float = setting()
    precision: Precision = setting("float32")


@dataclass(frozen=True, kw_only=True)
class ReadingPlan:
    """What must be decided before the data are opened: how they are read, and for which network."""

    kind: Kind
    data: DataSettings  # the augmentation may still be open
    model: ModelPlan
    method_name: str
    seed: int
    device: str

    @property
    def on_features(self) -> bool:
        """Whether a head is trained on the frozen features of a pretrained network."""
        return self.model.tune == "head"

    @property
    def fine_tunes(self) -> bool:
        """Whether all of a pretrained network is trained."""
        return self.model.tune == "all" and self.model.weights != "none"

    @property
    def linear(self) -> bool:
        """Whether the trained part is a linear layer."""
        return self.model.head == "linear" if self.on_features else self.model.name == "linear"

    @property
    def notice(self) -> str | None:
        """Which part of a pretrained network is trained, in one line."""
        model = self.model
        if self.on_features:
            return (
                f"a {model.head} head is trained on frozen features of {model.name} ({model.weights} weights); "
                "--tune all trains the whole network, --weights none trains it from scratch"
            )
        if self.fine_tunes:
            return f"all of {model.name} is fine-tuned from {model.weights} weights; --tune head is faster"
        return None


@dataclass(frozen=True, kw_only=True)
class Plan(ReadingPlan):
    """Everything that decides the outcome of a run."""

    data: DataPlan
    method: Method
    fit: TrainingPlan
    views: int

    @property
    def epochs(self) -> int:
        return self.fit.epochs

    def values(self) -> dict[str, Any]:
        """Every setting by the name that users know."""
        general = GeneralSettings(seed=self.seed, views=self.views, device=self.device)
        sections = {"data": self.data, "model": self.model, "fit": self.fit, "general": general}
        return values_by_name(self.method_name, self.method, sections)

    def to_json(self) -> dict[str, Any]:
        """The settings in run.json."""
        return {
            "kind": self.kind,
            "data": plain(self.data),
            "model": plain(self.model),
            "fit": plain(self.fit),
            "method": {"name": self.method_name, **plain(self.method)},
            "seed": self.seed,
            "views": self.views,
            "device": self.device,
        }

    @classmethod
    def of(cls, folder: RunFolder, kind: Kind) -> Self:
        """The plan of a run, which must be of this kind.

        Raises:
            UserError: if the run is of the other kind, or its run.json does not hold a plan.
        """
        run = folder.read_run()
        _check_kind(run, kind)
        try:
            return cls.from_json(run, kind)
        except (UserError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{folder.settings_file} does not hold the settings of a run: {error}") from error

    @classmethod
    def from_json(cls, run: Mapping[str, Any], kind: Kind) -> Self:
        """The plan in a run.json, which must be of this kind.

        Raises:
            UserError: if the run is of the other kind, or a setting is unknown or invalid.
        """
        _check_kind(run, kind)
        content = run["settings"]
        method = dict(content["method"])
        name = method.pop("name")
        model = {word: value for word, value in content["model"].items() if value is not None}
        fit = dict(content["fit"])
        fit["compile"] = _COMPILE_BEFORE.get(fit.get("compile"), fit.get("compile"))
        crops = content["data"].get("crops", "square").replace("picture", "original")  # its name in version 0.1
        read = cls(
            kind=kind,
            data=from_plain(DataPlan, {**content["data"], "crops": crops}),
            model=from_plain(ModelPlan, model),  # null for weights and tune: not a pretrained network
            fit=from_plain(TrainingPlan, fit),
            method_name=name,
            method=from_plain(method_class(kind, name), method),
            seed=content["seed"],
            views=content["views"],
            device=content["device"],
        )
        about, noise = run["data"], run["noise"]
        return read.suited(
            data=about["name"],
            num_classes=len(about["classes"]),
            num_samples=about["samples"]["train"],
            has_validation=about["samples"]["validation"] is not None,
            noise_rate=None if noise is None or read.data.noise is None else noise["actual"],
            sees_images=InputSpec.of(about["shape"]).kind == "images",
        )

    def suited(self, **facts: Any) -> Self:
        """The plan with its method suited to the task, of which `facts` are what the data decide.

        Raises:
            UserError: if the method does not suit the task.
        """
        task = Task(
            epochs=self.epochs,
            seed=self.seed,
            views=self.views,
            optimizer=self.fit.optimizer,
            linear=self.linear,
            **facts,
        )
        return replace(self, method=self.method.suited(task))

    @property
    def shards(self) -> int | None:
        """Number of virtual shards of the training samples; None for a global order."""
        return parse_shuffle(self.fit.shuffle)

    def storage(self, device: torch.device, file: Path | None = None, targets: str | None = None) -> Storage:
        """How targets are stored, by default those of `--targets`. With shards, a process keeps those of its samples.

        Args:
            device: The device on which they are updated.
            file: The path to use if they are stored in a file.
            targets: Another value of `--targets`.
        """
        chosen = Storage.parse(targets or self.fit.targets, device=device, file=file)
        return replace(chosen, sharded=chosen.sharded or self.shards is not None)

    def fit_settings(self) -> FitSettings:
        """The settings of the training loop."""
        fit = self.fit
        return FitSettings(
            epochs=fit.epochs,
            micro_batches=fit.micro_batches,
            optimizer=OptimizerSettings(
                name=fit.optimizer,
                lr=fit.lr,
                weight_decay=fit.weight_decay,
                warmup_epochs=fit.warmup_epochs,
                warmup_from=fit.warmup_from,
                **parse_schedule(fit.schedule, fit.epochs),
            ),
            precision=fit.precision,
            compile=fit.compile,
        )
