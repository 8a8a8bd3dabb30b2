"""Parameters that commands share, and what typer needs to run a command."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import typer

from selfadapt.cli.output import OUTPUT, Output, print_json

Options = Mapping[str, tuple[Any, Any]]  # type and typer option, by parameter name

Out = typer.Option(None, help="Run folder. Default: a new one in runs/.", rich_help_panel="Output")
Resume = typer.Option(
    False, "--resume", help="Resume the run in --out, or start it if it does not exist.", rich_help_panel="Training"
)
Device = typer.Option("auto", help="auto, cpu, cuda, rocm, xpu or mps.")
Devices = typer.Option(1, help="Number of data-parallel processes.", rich_help_panel="Training")
LogTo = typer.Option(
    None,
    help="Experiment trackers that receive the metrics: tensorboard, mlflow or wandb, separated by commas.",
    rich_help_panel="Advanced",
)
Processes = typer.Option(1, "--devices", help="Number of processes that share the work, one for each GPU.")
Jobs = typer.Option(
    1, help="Number of runs to train at the same time; they share the cores and the GPUs.", rich_help_panel="Training"
)
_PANELS = ("Data", "Model", "Training", "", "Output", "Options", "Advanced", "Experiments")  # in this order


def as_command(
    command: Callable[..., Output | None],
    settings: Options | None = None,
    build: Callable[[dict[str, Any]], Any] = dict,
) -> Callable[..., None]:
    """Add --quiet, --json and --help to a command.

    A command yields its JSON object, then prints for people; with --json, only the object is printed. With
    `settings`, a command also gets these options, and receives as `given` what `build` makes of the given values.
    """

    def wrapped(**values: Any) -> None:
        values.pop("help")
        OUTPUT.json = values.pop("json")
        OUTPUT.quiet = values.pop("quiet") or OUTPUT.json
        if settings is not None:
            given = {name: value for name in settings if (value := values.pop(name)) is not None}
            values["given"] = build(given)
        results = command(**values)
        for content in results or ():
            if OUTPUT.json and results is not None:
                print_json(content)
                results.close()

    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [parameter for parameter in inspect.signature(command).parameters.values() if parameter.name != "given"]
    added = {**(settings or {}), "quiet": (bool, _Quiet), "json": (bool, _Json), "help": (bool, _Help)}
    parameters = [parameter.replace(kind=keyword) for parameter in own]
    parameters += [
        inspect.Parameter(name, keyword, default=option, annotation=kind) for name, (kind, option) in added.items()
    ]
    parameters.sort(key=_panel_order)
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    wrapped.__doc__ = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapped


def _panel_order(parameter: inspect.Parameter) -> int:
    return _PANELS.index((parameter.default.rich_help_panel or "").partition(" of ")[0])  # "Options of sat"


def _show_help(context: typer.Context, wanted: bool) -> None:
    if wanted:
        print(context.get_help())
        raise typer.Exit


_Quiet = typer.Option(False, "--quiet", help="Do not show progress.", rich_help_panel="Output")
_Json = typer.Option(
    False, "--json", help="Print one JSON object as the last line of standard output.", rich_help_panel="Output"
)
# In place of the option that typer adds, which would be alone in a panel above all others.
_Help = typer.Option(
    False, "--help", is_eager=True, callback=_show_help, help="Show this message and exit.", rich_help_panel="Output"
)
