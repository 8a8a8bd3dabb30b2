"""`selfadapt labels`"""

from pathlib import Path

import typer

from selfadapt.cli.output import Json, print_json

EXAMPLE = "Example: selfadapt labels runs/first --confidence 0.8"


def command(
    run: Path = typer.Argument(help="The folder of a run that was audited."),
    confidence: float = typer.Option(0.6, help="Take a suggestion from this confidence on; others stay as given."),
    out: Path | None = typer.Option(None, help="The table to write. Default: corrected.csv in the run folder."),
    as_json: bool = Json,
) -> None:
    """Write the corrected label table of RUN: id, path, label, and the label as it was given.

    Labels that a person decided come first (decisions.csv in the run folder, columns id and label); for the others,
    suggestions of the audit that are confident enough. Train on it with: selfadapt train DATA --labels FILE
    """
    from selfadapt.report.results import RunFolder
    from selfadapt.runs.corrected_labels import write_corrected_labels

    path, changed, total = write_corrected_labels(RunFolder(run), confidence, out)
    if as_json:
        print_json({"labels": str(path), "changed": changed})
    else:
        print(f"{changed} of {total} labels changed\n{path}")
