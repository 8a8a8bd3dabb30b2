"""`selfadapt export`"""

from pathlib import Path

import typer

from selfadapt.cli.output import Json, Quiet, print_json

EXAMPLE = "Example: selfadapt export runs/features --format torchvision"


def command(
    run: Path = typer.Argument(help="The folder of a trained run, with or without labels."),
    form: str = typer.Option(
        "safetensors",
        "--format",
        help="safetensors; torchvision for its ResNets; or onnx, from images or vectors to probabilities.",
    ),
    out: Path | None = typer.Option(None, help="The file. Default: in the run folder."),
    quiet: bool = Quiet,
    as_json: bool = Json,
) -> None:
    """Write the network of RUN for use elsewhere."""
    from selfadapt.run_folder.folder import RunFolder
    from selfadapt.runs.export.network_files import export

    path = export(RunFolder(run), form, out)
    if as_json:
        print_json({"path": str(path)})
    else:
        print(path)
