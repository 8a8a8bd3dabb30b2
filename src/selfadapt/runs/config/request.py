"""What a user asks for: settings by the names that users know, checked one by one.

Which settings suit each other, and what is chosen for those that are not given, is decided by `plan` (planning.py).
Nothing here imports torch before it is needed, so that help is quick.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from selfadapt.core.errors import UserError
from selfadapt.core.file_names import INVALID_FILE_NAME, as_text
from selfadapt.core.settings import Setting, from_plain, plain, settings_in
from selfadapt.runs.config.sections import (
    DataSettings,
    GeneralSettings,
    ModelSettings,
    TrainingSettings,
    split_weights,
)

if TYPE_CHECKING:
    from selfadapt.objectives.method import Method

Kind = Literal["labels", "pretraining"]
COMMANDS: Mapping[Kind, str] = {"labels": "train", "pretraining": "pretrain"}  # that train a run of each kind

_SECTIONS: dict[str, type] = {
    "data": DataSettings, "model": ModelSettings, "fit": TrainingSettings, "general": GeneralSettings,
}  # fmt: skip
_MAIN_SETTING = {"data": "source", "model": "name"}  # users name it as its section
_DEFAULTS: dict[Kind, dict[str, Any]] = {
    "labels": {"method": "sat"},
    "pretraining": {"method": "sat", "model": "resnet18", "augment": "self-supervised"},
}
_UNSET_WITHOUT_LABELS = {  # what is chosen, where that differs from a run with labels
    "epochs": "100",
    "batch_size": "128, or 512 from 50,000 samples on",
    "lr": "0.1",
    "weight_decay": "0.00005",
    "warmup_epochs": "30/800 of the epochs",
}
_ONLY_WITHOUT_LABELS = {"views"}
_ONLY_WITH_LABELS = {
    "labels", "corrected", "noise", "validation", "label_share", "dropout", "mirror", "pretrained", "weights", "tune",
    "head", "label_column", "text_column", "group_column", "curves", "test_curve",
}  # fmt: skip
# Chosen by `plan` where they are not given, as are the settings of a method.
_CHOSEN = {
    "model", "weights", "tune", "epochs", "batch_size", "lr", "weight_decay", "warmup_epochs", "augment", "crops",
    "image_size", "device", "views", "precision",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Request:
    """The settings of a run as a user gave them. None stands for what `plan` is to choose.

    Examples:
        >>> request = Request.of(data="digits", method="sat", noise="symmetric:0.4")
        >>> plan(request, facts)
    """

    kind: Kind
    given: Mapping[str, Any] = field(compare=False)  # what the user gave, by name; the rest are defaults
    data: DataSettings
    model: ModelSettings
    fit: TrainingSettings
    general: GeneralSettings
    method_name: str
    method: "Method"

    @classmethod
    def of(cls, kind: Kind = "labels", **given: Any) -> "Request":
        """Check settings one by one, by the names of the command line's options.

        Args:
            kind: "labels" for `selfadapt train`, "pretraining" for `selfadapt pretrain`.
            **given: settings of every run, `data` and `method` among them, and those of the method.

        Raises:
            UserError: for a name that neither the run nor the method has, or a value out of bounds.
        """
        given = split_weights(normal_form(given))
        values = {**_DEFAULTS[kind], **given}
        name = values.pop("method")
        method = method_class(kind, name)
        shared, sections = _homes(), {section: dict[str, Any]() for section in (*_SECTIONS, "method")}
        for word, value in values.items():
            if word in settings_in(method):
                sections["method"][word] = value
            elif word in shared and word not in _of_other_kind(kind):
                section, own = shared[word]
                sections[section][own] = value
            else:
                raise UserError(f"{option_of(word)} is not a setting of {name}")
        if "data" not in values:
            raise UserError("no data given; name a data set or a path")
        built = {section: owner(**sections[section]) for section, owner in _SECTIONS.items()}
        return cls(kind=kind, given=given, method_name=name, method=from_plain(method, sections["method"]), **built)

    @property
    def names_method(self) -> bool:
        """Whether the user asked for this method, by its name or by one of its settings."""
        return "method" in self.given or any(word in settings_in(type(self.method)) for word in self.given)

    def values(self) -> dict[str, Any]:
        """Every setting by the name that users know."""
        return values_by_name(self.method_name, self.method, {name: getattr(self, name) for name in _SECTIONS})

    def required(self) -> dict[str, Any]:
        """The settings that a run must have been started with to be the one asked for.

        These are all but those that `plan` chooses where they are not given.
        """
        of_method = {"method", *settings_in(type(self.method))}
        left_out = _of_other_kind(self.kind) | (set() if self.names_method else of_method)
        chosen = _CHOSEN | of_method
        return {
            word: value
            for word, value in self.values().items()
            if word not in left_out and (word not in chosen or value not in (None, "auto"))
        }


def values_by_name(method_name: str, method: "Method", sections: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in sections, by the names that users know."""
    shared = {word: getattr(sections[section], own) for word, (section, own) in _homes().items()}
    return {"method": method_name, **plain(method), **shared}


def shared_settings(kind: Kind) -> dict[str, Setting]:
    """The settings that runs of this kind have whatever the method, by the names that users know."""
    found = {}
    for word, (section, own) in _homes().items():
        if word != "data" and word not in _of_other_kind(kind):
            known = settings_in(_SECTIONS[section])[own]
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
    """The section and the field of each setting, by the name that users know."""
    return {
        section if _MAIN_SETTING.get(section) == own else own: (section, own)
        for section, owner in _SECTIONS.items()
        for own in settings_in(owner)
    }


def _of_other_kind(kind: Kind) -> set[str]:
    return _ONLY_WITHOUT_LABELS if kind == "labels" else _ONLY_WITH_LABELS


def option_of(word: str) -> str:
    return "DATA" if word == "data" else "--" + word.replace("_", "-")


def normal_form(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings with absolute paths and the noise as it is printed, so that they can be compared."""
    result = dict(settings)
    for name in ("data", "labels", "corrected", "pretrained", "weights"):
        path = result.get(name)
        if not isinstance(path, str | Path | None):
            raise UserError(f"{option_of(name)} is of type {type(path).__name__}; give the path of a file")
        if (
            path is not None
            and Path(path).exists()
            and not (_is_named_set(str(path)) or path in ("pretrained", "none"))
        ):
            result[name] = str(Path(path).resolve())
            if as_text(result[name]) != result[name]:
                raise UserError(f"{as_text(result[name])}: {INVALID_FILE_NAME}, or the folder that it is in")
    if result.get("noise") is not None:
        from selfadapt.data.labels.noise import Noise

        result["noise"] = str(Noise.parse(str(result["noise"])).resolved())
    return result


def _is_named_set(source: str) -> bool:
    from selfadapt.data.sources.builtin import SOURCES

    return source in SOURCES
