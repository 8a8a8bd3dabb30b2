"""The options that decide a run. They follow from settings: those of every run, and those of the method asked for.

The method is read off the arguments before they are parsed, because its options are its own. Without a method on the
line, help shows what every run has and needs no torch.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from selfadapt.core.errors import UserError
from selfadapt.core.settings import Setting, settings_in
from selfadapt.runs.config.request import Kind, default_method, method_class, method_classes, shared_settings

Options = Mapping[str, tuple[Any, Any]]  # type and typer's option, by the name of the parameter


def options_of_run(kind: Kind, arguments: Sequence[str]) -> Options:
    """The options of a command that trains by the methods named in these arguments."""
    shared = shared_settings(kind)
    options = {name: _option(own) for name, own in shared.items()}
    hidden = _aliases(shared)
    named = _named_methods(kind, arguments)
    if named is not None:
        own = {name: found for method in named for name, found in settings_in(method_class(kind, method)).items()}
        _refuse_others(kind, arguments, named, {**shared, **own})
        options |= {name: _option(found, f"Options of {', '.join(named)}") for name, found in own.items()}
        hidden |= _aliases(own)
    return {**options, **hidden}


def _option(own: Setting, panel: str | None = None, name: str | None = None) -> tuple[Any, Any]:
    words = (own.description[:1].upper() + own.description[1:] if panel else own.description).removesuffix(".")
    told = f"{words}. Default: {own.summary()}." if own.kind is not bool or own.default else f"{words}."
    option = name or own.option
    if own.kind is bool and own.default is not False:
        option = f"{option}/--no-{option.removeprefix('--')}"
    return own.kind | None, typer.Option(None, option, help=told, hidden=name is not None, rich_help_panel=panel)


def _aliases(settings: Mapping[str, Setting]) -> dict[str, tuple[Any, Any]]:
    """Names that options had once, which still work."""
    return {
        f"{name}__{alias.strip('-').replace('-', '_')}": _option(own, name=alias)
        for name, own in settings.items()
        for alias in own.aliases
    }


def _named_methods(kind: Kind, arguments: Sequence[str]) -> list[str] | None:
    """The methods that are asked for; None if it is help that is asked for, whatever the method."""
    given = _value(arguments, "--methods") or _value(arguments, "--method")
    if given == "all":
        return list(method_classes(kind))
    if given is not None:
        return [name.strip() for name in given.split(",")]
    if "--help" in arguments:
        return None
    out = _value(arguments, "--out")
    if "--resume" in arguments and out is not None and (Path(out) / "run.json").exists():
        try:
            return [json.loads((Path(out) / "run.json").read_text(encoding="utf-8"))["settings"]["method"]["name"]]
        except (ValueError, KeyError, TypeError):
            pass  # the command itself tells what is wrong with the run
    return [default_method(kind)]


def _value(arguments: Sequence[str], option: str) -> str | None:
    for place, argument in enumerate(arguments):
        if argument == option:
            return arguments[place + 1] if place + 1 < len(arguments) else None
        if argument.startswith(f"{option}="):
            return argument.removeprefix(f"{option}=")
    return None


def _refuse_others(kind: Kind, arguments: Sequence[str], named: Sequence[str], known: Mapping[str, Setting]) -> None:
    """Say whose an option is that none of these methods has."""
    every = {name: settings_in(method) for name, method in method_classes(kind).items()}
    fine = {option for own in known.values() for option in (own.option, *own.aliases)}
    for argument in arguments:
        option = argument.split("=")[0].replace("--no-", "--")
        owners = [
            name for name, found in every.items() if any(option in (s.option, *s.aliases) for s in found.values())
        ]
        if option.startswith("--") and option not in fine and owners:
            raise UserError(
                f"{option} is an option of {', '.join(owners)}, not of {', '.join(named)}; "
                "`selfadapt methods` lists them"
            )


def with_options(options: Options) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options. It gets those that the user gave as `given`, by the names of settings."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def wrapped(**values: Any) -> None:
            given = {name.split("__")[0]: value for name in options if (value := values.pop(name)) is not None}
            command(**values, given=given)

        own = [parameter for parameter in inspect.signature(command).parameters.values() if parameter.name != "given"]
        shared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for name, (kind, default) in options.items()
        ]
        parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own] + shared
        wrapped.__doc__ = command.__doc__
        wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapped

    return decorate
