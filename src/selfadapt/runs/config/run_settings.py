"""The settings of a run: data, model, method and fit, each in a part of its own. They go into run.json and come back.

The parts, with the words and bounds of each setting, are in sections.py; the options of the command line follow from
them. What is None is chosen by `resolved` for the data and the machine. Nothing here needs torch until it is used, so
that help is quick.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from selfadapt.core.errors import UserError
from selfadapt.core.settings import Setting, check_settings, from_plain, plain, setting, settings_in
from selfadapt.runs.config.sections import PHOTOS, DataSettings, ModelSettings, TrainingSettings, parse_schedule

if TYPE_CHECKING:
    from selfadapt.data.dataset import Data
    from selfadapt.data.tabular.table_file import TableColumns
    from selfadapt.engine.fit import FitSettings
    from selfadapt.objectives.method import Method, Task

Kind = Literal["labels", "pretraining"]

SMALL_SET = 5_000  # training samples
FOR_HEADS = "sat-folds"  # the method for a linear head, if none is asked for
_PICTURE_SIZE = 224  # pixels that crops from pictures are brought to, if nobody says
_WARM_UP = 30 / 800  # of the epochs without labels, as in the paper
_OF_STEPS = (
    "batch_size", "micro_batches", "optimizer", "lr", "weight_decay", "warmup_epochs", "warmup_from", "schedule",
)  # fmt: skip


_PARTS: dict[str, type] = {"data": DataSettings, "model": ModelSettings, "fit": TrainingSettings}
_WORD_FOR_PART = {"data": "source", "model": "name"}  # parts that a user calls by the name of their main setting
_DEFAULTS: dict[Kind, dict[str, Any]] = {
    "labels": {"method": "sat"},
    "pretraining": {"method": "sat", "model": "resnet18", "augment": "self-supervised"},
}
_UNSET_WITHOUT_LABELS = {  # in words, where it is not as with labels
    "epochs": "100",
    "batch_size": "128, or 512 from 50,000 samples on",
    "lr": "0.1",
    "weight_decay": "0.00005",
    "warmup_epochs": "30 of 800",
}
_OF_THE_OTHER_KIND: dict[Kind, set[str]] = {
    "labels": {"views"},
    "pretraining": {
        "labels",
        "corrected",
        "noise",
        "validation",
        "label_share",
        "dropout",
        "mirror",
        "pretrained",
        "weights",
        "tune",
        "head",
    }
    | {"label_column", "text_column", "group_column", "curves", "test_curve"},
}
# What `resolved` chooses where it is not given; the settings of a method are such, too.
_LEFT_OPEN = {
    "model", "weights", "tune", "epochs", "batch_size", "lr", "weight_decay", "warmup_epochs", "augment", "image_size",
    "device",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Everything that decides the outcome of a run, with labels or without."""

    kind: Kind = "labels"
    data: DataSettings
    model: ModelSettings
    method_name: str
    method: "Method"
    fit: TrainingSettings
    seed: int = setting(0, "Decides every random number.", least=0, most=2**63 - 1)
    views: int = setting(
        None,
        "Augmented views of an image in a step, 1 or 2.",
        least=1,
        most=2,
        unset="as the method's authors have it: 2 for byol, moco, simclr and simsiam, else 1",
    )
    device: str = setting("auto", "auto, cpu, cuda, mps.")

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    def given(cls, kind: Kind = "labels", **settings: Any) -> "RunSettings":
        """Settings as a user gives them, by the names that users know."""
        flat = {**_DEFAULTS[kind], **normal_form(settings)}
        name = flat.pop("method")
        method = method_class(kind, name)
        flat.setdefault("views", method.views)
        parts: dict[str, dict[str, Any]] = {"data": {}, "model": {}, "fit": {}, "method": {}, "own": {}}
        homes = _homes() | {own: ("method", own) for own in settings_in(method)}
        for word, value in flat.items():
            if word not in homes:
                raise UserError(f"{option_of(word)} is no setting of {name}")
            part, own = homes[word]
            parts[part][own] = value
        chosen = cls(
            kind=kind,
            data=DataSettings(**parts["data"]),
            model=ModelSettings(**parts["model"]),
            method_name=name,
            method=from_plain(method, parts["method"]),
            fit=TrainingSettings(**parts["fit"]),
            **parts["own"],
        )
        chosen = chosen._with_network()._with_crops()
        if "method" not in settings and kind == "labels" and chosen._linear and not parts["method"]:
            chosen = replace(chosen, method_name=FOR_HEADS, method=method_class(kind, FOR_HEADS)())
        return chosen

    @classmethod
    def from_json(cls, content: Mapping[str, Any], kind: Kind) -> "RunSettings":
        """The settings of a run's run.json, which must be of this kind."""
        own = content["kind"]
        if own != kind:
            raise UserError(_ANOTHER_KIND[own])
        method = dict(content["method"])
        flat = {"method": method.pop("name"), **method}
        for part in _PARTS:
            for name, value in content[part].items():
                value = "original" if (name, value) == ("crops", "picture") else value  # the name in version 0.1
                flat[part if _WORD_FOR_PART.get(part) == name else name] = value
        return cls.given(kind, **flat, **{name: content[name] for name in ("seed", "views", "device")})

    def to_json(self) -> dict[str, Any]:
        parts = {part: plain(getattr(self, part)) for part in _PARTS}
        return {"kind": self.kind, **parts, "method": {"name": self.method_name, **plain(self.method)}, **plain(self)}

    def flat(self) -> dict[str, Any]:
        """Every setting by the name that users know."""
        flat = {word: getattr(self._part(part), own) for word, (part, own) in _homes().items()}
        return {"method": self.method_name, **plain(self.method), **flat}

    def _part(self, part: str) -> Any:
        return self if part == "own" else getattr(self, part)

    def asked_for(self) -> dict[str, Any]:
        """Every setting but those that were left open."""
        open_to = _LEFT_OPEN | set(settings_in(type(self.method)))
        flat = self.flat()
        return {word: value for word, value in flat.items() if word not in open_to or value not in (None, "auto")}

    def differs(self, given: Mapping[str, Any]) -> str | None:
        """The name of a given setting that these were not made with, if there is one."""
        own = self.flat()
        told = RunSettings.given(self.kind, **{"data": self.data.source, "method": self.method_name, **given}).flat()
        return next((word for word in given if own[word] != told[word]), None)

    def task(self, data: "Data") -> "Task":
        """What the method may know of its run."""
        from selfadapt.data.labels.noise import actual_rate
        from selfadapt.objectives.method import Task

        return Task(
            num_classes=data.num_classes,
            num_samples=len(data.train),
            data=data.name,
            epochs=self.fit.epochs or self._chosen_fit(data)["epochs"],
            seed=self.seed,
            views=self.views,
            optimizer=self.fit.optimizer,
            has_validation=data.validation is not None,
            noise_rate=None if self.data.noise is None else actual_rate(data.train),
            linear=self._linear,
            sees_images=data.train.inputs.kind == "images" and not self.on_features,
        )

    def _with_network(self) -> "RunSettings":
        """These settings with a network that suits the data, as far as a look at their head tells."""
        from selfadapt.data.sources.catalog import kind_of
        from selfadapt.models.pretrained.timm_models import timm_name
        from selfadapt.runs.lifecycle.environment import choose_device

        model = self.model
        if model.name is None:
            found = kind_of(self.data.source, self.columns)
            model = replace(model, name={"photos": PHOTOS, "vectors": "linear"}.get(found, "resnet-small"))
        assert model.name is not None
        if self.kind == "pretraining":
            return replace(self, model=_checked_width(model))
        if timm_name(model.name) is None:
            if model.head != "linear":
                raise UserError(
                    f"--head {model.head} is for features of timm's networks; {model.name} is none of them"
                    f"{': for vectors, choose --model mlp' if model.name == 'linear' else ''}"
                )
            for word, value in (("--weights", model.weights), ("--tune", model.tune)):
                if value not in (None, "none", "all"):
                    raise UserError(f"{word} {value} is for networks of timm's; {model.name} is none, and begins anew")
        else:
            weights = model.weights or "pretrained"
            on_gpu = choose_device(self.device).type != "cpu"
            tune = model.tune or ("all" if on_gpu or weights == "none" else "head")
            if tune == "head" and weights == "none":
                raise UserError("--tune head needs a network that knows something; leave --weights none out")
            if tune == "all" and model.head != "linear":
                raise UserError(f"--head {model.head} is for features that are taken once: --tune head")
            model = replace(model, weights=weights, tune=tune)
        return replace(self, model=_checked_width(model))

    def _with_crops(self) -> "RunSettings":
        """These settings with what random crops are cut from, and the size that they are brought to."""
        from selfadapt.data.images.augment import smallest_area
        from selfadapt.data.sources.builtin import SOURCES
        from selfadapt.models.pretrained.timm_models import timm_name

        data = self.data
        source = SOURCES.get(data.source)
        suits = (data.augment is None or smallest_area(data.augment) is not None) and not self.on_features
        if data.crops is None:
            from_original = suits and source is not None and source.crops_from_original
            data = replace(data, crops="original" if from_original else "square")
        if data.crops == "square":
            return replace(self, data=data)
        if self.on_features:
            raise UserError("--crops original is for a network that sees images: add --tune all, or --weights none")
        if not suits:
            raise UserError(
                f"--crops original is for random resized crops, which --augment {data.augment} has none of; "
                "choose resized-crop, self-supervised or self-supervised-blur"
            )
        size = data.image_size or (_PICTURE_SIZE if timm_name(self.model.name or "") is None else None)
        return replace(self, data=replace(data, augment=data.augment or "resized-crop", image_size=size))

    @property
    def columns(self) -> "TableColumns":
        from selfadapt.data.tabular.table_file import TableColumns

        return TableColumns(label=self.data.label_column, text=self.data.text_column, group=self.data.group_column)

    @property
    def on_features(self) -> bool:
        """Whether a head learns from features of a pretrained network."""
        return self.model.tune == "head"

    @property
    def _linear(self) -> bool:
        return self.model.head == "linear" if self.on_features else self.model.name == "linear"

    @property
    def fine_tunes(self) -> bool:
        """Whether all of a pretrained network goes on learning."""
        return self.model.tune == "all" and self.model.weights not in (None, "none")

    @property
    def epochs(self) -> int:
        """How many epochs there are, once that is settled."""
        assert self.fit.epochs is not None
        return self.fit.epochs

    @property
    def choice(self) -> str | None:
        """What of a pretrained network learns, in a line."""
        model = self.model
        if self.on_features:
            return (
                f"features of {model.name} ({model.weights} weights) are taken once, and a {model.head} head learns on "
                "them; --tune all trains the whole network, --weights none begins from nothing"
            )
        if self.fine_tunes:
            return f"all of {model.name} is fine-tuned, beginning with {model.weights} weights; --tune head is faster"
        return None

    def resolved(self, data: "Data") -> "RunSettings":
        """These settings with what was left open chosen for the data and the machine.

        Large sets take the paper's values for CIFAR. A small set has so few steps in an epoch, and is memorised so
        soon, that it wants smaller batches and a stronger decay. A head on features learns fast, and memorises fast.
        """
        from selfadapt.runs.lifecycle.environment import device_name

        chosen = self._chosen_fit(data)
        self._refuse_steps({**plain(TrainingSettings()), **chosen})
        fit = {name: value for name, value in chosen.items() if getattr(self.fit, name) is None}
        settled = replace(
            self,
            data=replace(
                self.data,
                augment=self.data.augment or data.augment,
                image_size=self.data.image_size or data.image_size,
            ),
            fit=replace(self.fit, **fit),
            device=device_name(self.device),
        )
        settled.fit.check_rate()
        return replace(settled, method=settled.method.suited(settled.task(data)))

    def _refuse_steps(self, usual: Mapping[str, Any]) -> None:
        """Raise a UserError if a method that takes no steps is told how to take them, as that would do nothing."""
        given = [name for name in _OF_STEPS if getattr(self.fit, name) not in (None, usual[name])]
        given += ["dropout"] if self.model.dropout else []
        if given and self.method.settles:
            raise UserError(
                f"--method {self.method_name} takes no steps, so {option_of(given[0])} would do nothing; leave it out, "
                "or choose another method"
            )

    def _chosen_fit(self, data: "Data") -> dict[str, Any]:
        size, epochs = len(data.train), self.fit.epochs
        if self.kind == "pretraining":
            epochs = epochs or 100
            batch_size, warm_up = 512 if size >= 10 * SMALL_SET else 128, round(_WARM_UP * epochs, 3)
            steps = {"epochs": epochs, "batch_size": batch_size, "warmup_epochs": warm_up}
            return {**steps, "lr": 0.1, "weight_decay": 5e-5}
        if self.on_features or self.model.name == "linear":
            batch_size = min(256, max(4, size // 16))  # few samples in large batches would be too few steps
            epochs = 1 if self.method.settles else 20
            return {"epochs": epochs, "lr": 0.003, "batch_size": batch_size, "weight_decay": 0.3, "warmup_epochs": 0.0}
        if self.fine_tunes:
            warm_up = 0.0 if epochs == 1 else 1.0
            return {"epochs": 15, "lr": 0.01, "batch_size": 32, "weight_decay": 5e-4, "warmup_epochs": warm_up}
        small = size < SMALL_SET
        batch_size, weight_decay = (64, 5e-3) if small else (256, 5e-4)
        return {"epochs": 60, "lr": 0.1, "batch_size": batch_size, "weight_decay": weight_decay, "warmup_epochs": 0.0}

    def fit_settings(self) -> "FitSettings":
        """What the loop needs of these."""
        from selfadapt.engine.fit import FitSettings
        from selfadapt.engine.optim import OptimizerSettings

        fit = self.fit
        assert fit.epochs is not None
        assert fit.lr is not None
        assert fit.weight_decay is not None
        assert fit.warmup_epochs is not None
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


_ANOTHER_KIND = {
    "labels": "this is a run with labels (selfadapt train), not one of `selfadapt pretrain`",
    "pretraining": "this is a run without labels (selfadapt pretrain); evaluate it with: selfadapt probe",
}


def _checked_width(model: ModelSettings) -> ModelSettings:
    """The same, if its network has a width to set."""
    from selfadapt.models.pretrained.timm_models import timm_name

    name = model.name or ""
    on_mlp = model.tune == "head" and model.head == "mlp"
    if model.width is not None and (name == "linear" or timm_name(name) is not None) and not on_mlp:
        raise UserError(f"--width {model.width} would do nothing: {name} has its own; leave it out")
    return model


def shared_settings(kind: Kind) -> dict[str, Setting]:
    """The settings that runs of this kind have whatever the method, by the names that users know."""
    found = {}
    for word, (part, own) in _homes().items():
        if word != "data" and word not in _OF_THE_OTHER_KIND[kind]:
            known = settings_in(RunSettings if part == "own" else _PARTS[part])[own]
            unset = _UNSET_WITHOUT_LABELS.get(word, known.unset) if kind == "pretraining" else known.unset
            found[word] = replace(known, default=_DEFAULTS[kind].get(word, known.default), unset=unset)
    return found


def default_method(kind: Kind) -> str:
    return str(_DEFAULTS[kind]["method"])


def method_classes(kind: Kind) -> "Mapping[str, type[Method]]":
    from selfadapt.objectives.methods import METHODS

    return METHODS[kind]


def method_class(kind: Kind, name: str) -> "type[Method]":
    known = method_classes(kind)
    if name not in known:
        raise UserError(f"--method {name!r} is not known; choose one of {', '.join(known)}")
    return known[name]


def _homes() -> dict[str, tuple[str, str]]:
    """Where each setting lives, by the name that users know: the part and the field."""
    homes: dict[str, tuple[str, str]] = {}
    for part, owner in _PARTS.items():
        for own in settings_in(owner):
            homes[part if _WORD_FOR_PART.get(part) == own else own] = (part, own)
    return homes | {own: ("own", own) for own in settings_in(RunSettings)}


def option_of(word: str) -> str:
    return "DATA" if word == "data" else "--" + word.replace("_", "-")


def normal_form(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings with absolute paths and the noise as it is printed, to be compared."""
    result = dict(settings)
    for name in ("data", "labels", "corrected", "pretrained", "weights"):
        path = result.get(name)
        if path is not None and Path(path).exists() and not (_is_named_set(path) or path in ("pretrained", "none")):
            result[name] = str(Path(path).resolve())
    if result.get("noise") is not None:
        from selfadapt.data.labels.noise import Noise

        result["noise"] = str(Noise.parse(result["noise"]).resolved())
    return result


def _is_named_set(source: str) -> bool:
    from selfadapt.data.sources.builtin import SOURCES

    return source in SOURCES
