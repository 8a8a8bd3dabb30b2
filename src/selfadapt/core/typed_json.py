"""JSON values that are checked against type annotations: those of a TypedDict, at any depth.

    class Calibration(TypedDict):
        selector: str
        threshold: Finite
        passes: Annotated[int, Within(0, 10_000)]

    check(content, Calibration)     # ValueError: passes is 'many'; it must be a whole number from 0 up to 10000

Keys that a TypedDict does not name are allowed, so that a file may hold more.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Union, get_args, get_origin, get_type_hints
from typing import is_typeddict as is_object

_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", NoneType: "null"}
_SHOWN = 40  # characters of a wrong value
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True)
class Within:
    """The bounds of a number, inclusive. Without any, it must be finite."""

    least: float = -math.inf
    most: float = math.inf

    def __contains__(self, value: float) -> bool:
        return self.least <= value <= self.most and (isinstance(value, int) or math.isfinite(value))

    def __str__(self) -> str:
        limits = ((" from", self.least), (" up to", self.most))
        return "".join(f"{word} {limit:g}" for word, limit in limits if math.isfinite(limit)) or ", and finite"


Finite = Annotated[float, Within()]
Share = Annotated[float, Within(0, 1)]
Count = Annotated[int, Within(0, 2**48)]
Scalar = bool | int | float | str | None


class _Fault(NamedTuple):
    place: str
    value: str
    wanted: str


def parse(content: bytes) -> Any:
    """Parse JSON in UTF-8. Raises a ValueError for anything else.

    Values that are nested too deeply, and texts with half a surrogate pair, which cannot be written as UTF-8, are
    refused, too.
    """
    text = content.decode()
    try:
        value = json.loads(text)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("a text in it is not valid Unicode") from None
    return value


def check(value: Any, kind: Any) -> None:
    """Raise a ValueError that names the first field whose value is not of this kind."""
    for fault in _faults(value, kind, ""):
        raise ValueError(f"{fault.place or 'the content'} is {fault.value}; it must be {fault.wanted}")


def _faults(value: Any, kind: Any, place: str) -> Iterator[_Fault]:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        faults = [next(_faults(value, member, place), None) for member in arguments]
        if None not in faults:
            deepest = max((fault for fault in faults if fault), key=lambda fault: len(fault.place))
            yield deepest if deepest.place != place else _fault(value, kind, place)
    elif not _is(value, kind):
        yield _fault(value, kind, place)
    elif is_object(kind):
        for key, member in _members(kind).items():
            if key in value:
                yield from _faults(value[key], member, _below(place, key))
            elif key in kind.__required_keys__:
                yield _Fault(_below(place, key), "missing", _words(member))
    elif origin is dict:
        for key, member in value.items():
            yield from _faults(member, arguments[1], _below(place, key))
    elif origin is list:
        for number, member in enumerate(value):
            yield from _faults(member, arguments[0], f"{place}[{number}]")


def _is(value: Any, kind: Any) -> bool:
    """Whether a value is of a kind, its members aside."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _is(value, arguments[0]) and value in arguments[1]
    if origin is Literal:
        return type(value) is str and value in arguments
    if kind is float:
        return type(value) is float or (type(value) is int and abs(value) < 2**1000)
    return kind is Any or type(value) is (dict if is_object(kind) else origin or kind)


@cache
def _members(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {key: get_args(own)[0] if get_origin(own) is NotRequired else own for key, own in hints.items()}


def _fault(value: Any, kind: Any, place: str) -> _Fault:
    shown = repr(value) if not isinstance(value, dict | list) else "an object" if isinstance(value, dict) else "a list"
    return _Fault(place, shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…", _words(kind))


def _below(place: str, key: str) -> str:
    return f"{place}.{key[:_SHOWN]}" if place else key[:_SHOWN]


def _words(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return f"{_words(arguments[0])}{arguments[1]}"
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(_words, arguments)))
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    return "a list" if origin is list else _WORDS.get(kind, "an object")
