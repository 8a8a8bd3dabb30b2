"""Settings: fields of a frozen dataclass that a user may set, each with words and bounds.

From a field made by `setting` follow its option on the command line, its line of help, its check, and its place in
run.json. The dataclass that needs a setting is the only place that knows it. Nothing here needs torch.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from selfadapt.core.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A field that a user may set."""

    name: str
    kind: type  # what an option's text stands for: int, float, bool or str
    default: Any
    description: str
    option: str  # what users call it
    aliases: tuple[str, ...] = ()  # what they called it once
    unset: str | None = None  # what a value of None comes to, in words
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    parse: Callable[[str], Any] | None = None  # for values that are no plain number or word; its error names the value

    def check(self, value: Any) -> None:
        """Raise a UserError if the value is none that this setting may have."""
        if value is None or self.parse is not None:
            return
        if self.choices and value not in self.choices:
            raise UserError(f"{self.option} {value!r} is not known; choose one of {', '.join(self.choices)}")
        if isinstance(value, int | float) and not isinstance(value, bool) and not self._within(value):
            raise UserError(f"{self.option} {value} must be {self.bounds}")

    def _within(self, value: float) -> bool:
        return (
            math.isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    @property
    def bounds(self) -> str:
        limits = (("at least", self.least), ("above", self.above), ("at most", self.most), ("below", self.below))
        return " and ".join(f"{word} {limit:g}" for word, limit in limits if limit is not None) or "a finite number"

    def summary(self) -> str:
        """The default as a user reads it."""
        return self.unset or "none" if self.default is None else str(to_plain(self.default))


def setting(
    default: Any = MISSING,
    description: str = "",
    *,
    option: str | None = None,
    aliases: tuple[str, ...] = (),
    unset: str | None = None,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] = (),
    parse: Callable[[str], Any] | None = None,
) -> Any:
    """A field of a dataclass that a user may set; `option` is its name for users if the field's would not do."""
    told = {
        "description": description, "option": option, "aliases": aliases, "unset": unset, "least": least, "most": most,
        "above": above, "below": below, "choices": choices, "parse": parse,
    }  # fmt: skip
    return field(default=default, metadata={"setting": told})


def settings_in(owner: type) -> Mapping[str, Setting]:
    """The settings of a dataclass by the names of their fields."""
    found = {}
    for own in fields(owner):
        if "setting" in own.metadata:
            told = dict(own.metadata["setting"])
            told["option"] = told["option"] or "--" + own.name.replace("_", "-")
            kind, choices = _kind(own.type)
            told["choices"] = told["choices"] or choices
            kind = str if told["parse"] is not None else kind
            found[own.name] = Setting(name=own.name, kind=kind, default=own.default, **told)
    return found


def _kind(annotation: Any) -> tuple[type, tuple[str, ...]]:
    """The type behind an annotation, and the words that it allows."""
    if get_origin(annotation) in (Union, UnionType):
        annotation = next(part for part in get_args(annotation) if part is not NoneType)
    if get_origin(annotation) is Literal:
        return str, get_args(annotation)
    return annotation, ()


def check_settings(owner: Any) -> None:
    """Raise a UserError for the first setting of this instance that is out of bounds."""
    for name, own in settings_in(type(owner)).items():
        own.check(getattr(owner, name))


def from_plain(owner: type[T], values: Mapping[str, Any]) -> T:
    """An instance with these settings, as options or run.json give them."""
    known = settings_in(owner)
    parsed = {}
    for name, value in values.items():
        if name not in known:
            raise UserError(f"{name!r} is no setting of {owner.__name__}; it has {', '.join(known) or 'none'}")
        parse = known[name].parse
        try:
            parsed[name] = parse(str(value)) if parse is not None and value is not None else value
        except UserError as error:
            raise UserError(f"{known[name].option} {error}") from None
    return owner(**parsed)


def plain(owner: Any) -> dict[str, Any]:
    """The settings of an instance as run.json keeps them."""
    return {name: to_plain(getattr(owner, name)) for name in settings_in(type(owner))}


def to_plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
