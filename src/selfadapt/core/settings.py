"""Settings: fields of a frozen dataclass that a user may set, each with a description and bounds.

A field made by `setting` defines its command-line option, its help text, its validation and its entry in run.json.
Only the dataclass that needs a setting declares it. This module does not import torch.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from selfadapt.core.errors import UserError

T = TypeVar("T")
_TYPES: Mapping[type, tuple[str, type]] = {  # in words, and what counts as one: numbers of numpy do, too
    bool: ("true or false", bool),
    int: ("a whole number", Integral),
    float: ("a number", Real),
    str: ("a text", str),
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A field that a user may set."""

    name: str = ""  # of the field
    kind: type = str  # of the option's value: int, float, bool or str
    default: Any
    description: str
    option: str = ""  # its name on the command line
    aliases: tuple[str, ...] = ()  # former names: refused, with a hint at the current one
    group: str | None = None  # the panel of `--help` that shows it
    unset: str | None = None  # describes the value that None stands for
    required: bool = False  # None does not count as a value
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()  # of a `Literal` annotation
    parse: Callable[[str], Any] | None = None  # for structured values; its error names the value

    def check(self, value: Any) -> None:
        """Raise a UserError if the value is of another type, out of bounds or not among the choices."""
        if value is None:
            if self.required:
                raise UserError(f"{self.option} must be {_TYPES[self.kind][0]}; it has no value")
            return
        if self.parse is not None:
            return
        if not isinstance(value, _TYPES[self.kind][1]) or isinstance(value, bool) is not (self.kind is bool):
            raise UserError(f"{self.option} {value!r:.40} must be {_TYPES[self.kind][0]}")
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
        """The default, as shown to users."""
        return self.unset or "none" if self.default is None else str(to_plain(self.default))


def setting(
    default: Any = MISSING,
    description: str = "",
    *,
    option: str = "",
    aliases: tuple[str, ...] = (),
    group: str | None = None,
    unset: str | None = None,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    parse: Callable[[str], Any] | None = None,
) -> Any:
    """Declare a dataclass field that a user may set.

    Args:
        default: The default value; None if it is chosen later (`unset` describes it).
        description: One sentence for `--help`.
        option: The name on the command line. Default: derived from the name of the field.
        aliases: Former names of the option.
        group: The panel of `--help`.
        unset: What None stands for, in words.
        least, most, above, below: Bounds of a number, inclusive and exclusive.
        parse: Converts text to the value, and raises a UserError that names the value.

    Returns:
        A dataclass field.

    Examples:
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Smoothing:
        ...     epsilon: float = setting(0.1, "label smoothing", least=0, below=1)
    """
    declared = Setting(
        default=default, description=description, option=option, aliases=aliases, group=group, unset=unset,
        least=least, most=most, above=above, below=below, parse=parse,
    )  # fmt: skip
    return field(default=default, metadata={"setting": declared})


def settings_in(owner: type) -> Mapping[str, Setting]:
    """The settings of a dataclass, by field name."""
    found = {}
    for own in fields(owner):
        if "setting" in own.metadata:
            declared: Setting = own.metadata["setting"]
            kind, choices = _kind(own.type)
            found[own.name] = replace(
                declared,
                name=own.name,
                kind=str if declared.parse is not None else kind,
                option=declared.option or "--" + own.name.replace("_", "-"),
                required=NoneType not in get_args(own.type),
                choices=choices,
            )
    return found


def _kind(annotation: Any) -> tuple[type, tuple[str, ...]]:
    """The type behind an annotation, and the words of a Literal."""
    if get_origin(annotation) in (Union, UnionType):
        annotation = next(member for member in get_args(annotation) if member is not NoneType)
    if get_origin(annotation) is Literal:
        return str, get_args(annotation)
    return annotation, ()


def check_settings(owner: Any) -> None:
    """Raise a UserError for the first setting of this instance that is invalid."""
    for name, own in settings_in(type(owner)).items():
        own.check(getattr(owner, name))


def from_plain(owner: type[T], values: Mapping[str, Any]) -> T:
    """Build an instance from values of options or of run.json."""
    known = settings_in(owner)
    parsed = {}
    for name, value in values.items():
        if name not in known:
            raise UserError(f"{name!r} is not a setting of {owner.__name__}; it has {', '.join(known) or 'none'}")
        parse = known[name].parse
        try:
            parsed[name] = parse(str(value)) if parse is not None and value is not None else value
        except UserError as error:
            raise UserError(f"{known[name].option} {error}") from None
    missing = [own.option for name, own in known.items() if own.default is MISSING and name not in parsed]
    if missing:
        raise UserError(f"{missing[0]} has no value")
    return owner(**parsed)


def plain(owner: Any) -> dict[str, Any]:
    """The settings of an instance as run.json stores them."""
    return {name: to_plain(getattr(owner, name)) for name in settings_in(type(owner))}


def to_plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
