"""`selfadapt export`"""

from pathlib import Path

import typer

from selfadapt.cli.output import Output

EXAMPLE = "Example: selfadapt export runs/features --format torchvision"


def command(
    run: Path = typer.Argument(help="Folder of a trained or pretrained run."),
    form: str = typer.Option(
        "safetensors",
        "--format",
        help="safetensors, torchvision (ResNets), or, from inputs to probabilities, onnx or torch-export (.pt2).",
    ),
    out: Path | None = typer.Option(None, help="Output file. Default: in the run folder."),
) -> Output:
    """Export the network of RUN for use in other programs."""
    from selfadapt.run_folder.folder import RunFolder
    from selfadapt.runs.export.network_files import export

    path = export(RunFolder(run), form, out)
    yield {"path": str(path)}
    print(path)
