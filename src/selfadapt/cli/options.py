"""The options of the commands that train. They are derived from the settings of a run and of its method.

The method is read from the arguments before they are parsed, because each method adds options. Without a method, help
shows the options of every run and does not import torch.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from selfadapt.cli.parameters import Options
from selfadapt.core.errors import UserError
from selfadapt.core.regular_files import read_regular
from selfadapt.core.settings import Setting, settings_in
from selfadapt.core.typed_json import parse
from selfadapt.runs.config.request import Kind, default_method, method_class, method_classes, shared_settings

_FORMER_VALUES = {"--schedule": {"halve": "step", "tenth": "multistep"}, "--crops": {"picture": "original"}}


def run_options(kind: Kind, arguments: Sequence[str]) -> Options:
    """The options of a command that trains with the methods named in the arguments."""
    shared = shared_settings(kind)
    first = {own.option: name for name, own in reversed(shared.items())}  # --weights is two settings
    options = {name: _option(own, own.group or "Training") for name, own in shared.items() if first[own.option] == name}
    methods = _named_methods(kind, arguments)
    if methods is not None:
        own = {name: found for method in methods for name, found in settings_in(method_class(kind, method)).items()}
        _refuse_former_names(arguments, [*shared.values(), *own.values()])
        _refuse_options_of_others(kind, arguments, methods, {**shared, **own})
        options |= {name: _option(found, f"Options of {', '.join(methods)}") for name, found in own.items()}
    return options


def options_of(owner: type) -> Options:
    """The options of a command whose settings are a dataclass."""
    return {name: _option(own, own.group) for name, own in settings_in(owner).items()}


def _option(own: Setting, panel: str | None) -> tuple[Any, Any]:
    text = own.description[:1].upper() + own.description[1:].removesuffix(".")
    is_flag = own.kind is bool and not own.default
    option = own.option
    if own.kind is bool and own.default is not False:
        option = f"{option}/--no-{option.removeprefix('--')}"
    help_text = f"{text}." if is_flag else f"{text}. Default: {own.summary()}."
    return own.kind | None, typer.Option(None, option, help=help_text, rich_help_panel=panel)


def _named_methods(kind: Kind, arguments: Sequence[str]) -> list[str] | None:
    """The methods on the command line; None for general help."""
    given = _value(arguments, "--methods") or _value(arguments, "--method")
    if given == "all":
        return list(method_classes(kind))
    if given is not None:
        return [name.strip() for name in given.split(",")]
    if "--help" in arguments:
        return None
    out = _value(arguments, "--out")
    if "--resume" in arguments and out is not None:
        with suppress(OSError, ValueError, KeyError, TypeError, UserError):  # the command reports what is wrong
            name = parse(read_regular(Path(out) / "run.json"))["settings"]["method"]["name"]
            return [name] if name in method_classes(kind) else None
    return [default_method(kind)]


def _value(arguments: Sequence[str], option: str) -> str | None:
    for position, argument in enumerate(arguments):
        if argument == option:
            return arguments[position + 1] if position + 1 < len(arguments) else None
        if argument.startswith(f"{option}="):
            return argument.removeprefix(f"{option}=")
    return None


def _refuse_former_names(arguments: Sequence[str], settings: Sequence[Setting]) -> None:
    """Raise a UserError that gives the current name of an option or value of version 0.1."""
    current = {former: own.option for own in settings for former in own.aliases}
    for argument in arguments:
        option = argument.split("=")[0]
        if option in current:
            raise UserError(f"{option} has been renamed; use {current[option]}")
    for option, values in _FORMER_VALUES.items():
        kind, colon, rest = (_value(arguments, option) or "").partition(":")
        if kind in values:
            raise UserError(f"{option} {kind}{colon}{rest} has been renamed; use {option} {values[kind]}{colon}{rest}")


def _refuse_options_of_others(
    kind: Kind, arguments: Sequence[str], methods: Sequence[str], known: Mapping[str, Setting]
) -> None:
    """Raise a UserError that names the methods of an option that none of these methods has."""
    options = {
        name: {own.option for own in settings_in(method).values()} for name, method in method_classes(kind).items()
    }
    known_options = {own.option for own in known.values()}
    for argument in arguments:
        option = argument.split("=")[0].replace("--no-", "--")
        owners = [name for name, found in options.items() if option in found]
        if option.startswith("--") and option not in known_options and owners:
            raise UserError(
                f"{option} is an option of {', '.join(owners)}, not of {', '.join(methods)}; "
                "`selfadapt methods` lists them"
            )
