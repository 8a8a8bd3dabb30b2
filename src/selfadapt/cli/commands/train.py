"""`selfadapt train`"""

from pathlib import Path
from typing import Any

import typer

from selfadapt.cli.output import Output, percent, print_lines
from selfadapt.cli.parameters import Devices, LogTo, Out, Resume
from selfadapt.cli.training import run_to_the_end
from selfadapt.runs.config.request import Kind

KIND: Kind = "labels"
EXAMPLE = "Example: selfadapt train digits --method sat --noise symmetric:0.4 --out runs/first"


def command(
    given: dict[str, Any],
    data: str | None = typer.Argument(
        None, help="A name (selfadapt data list), or a folder, .csv, .parquet or .npz. Optional with --resume."
    ),
    method: str | None = typer.Option(
        None,
        help="Method (see selfadapt methods). --method NAME --help shows its options. Default: sat; sat-folds for a "
        "linear head (photos on a CPU, vectors, tables).",
        rich_help_panel="Training",
    ),
    out: Path | None = Out,
    resume: bool = Resume,
    devices: int = Devices,
    log_to: str | None = LogTo,
) -> Output:
    """Train on DATA, evaluate, find label errors, and write the run folder with its report.

    The same command with --resume continues an interrupted run, with bit-identical results.
    """
    given |= {"data": data, "method": method}
    run, result = run_to_the_end(KIND, given, out, resume=resume, devices=devices, log_to=log_to)
    yield result
    accuracies = {
        f"test accuracy ({result['network']})": result["test_accuracy"],
        "balanced test accuracy": result["test_balanced_accuracy"],
        "validation accuracy (given labels)": result["validation_accuracy"],
    }
    lines = {name: percent(value) for name, value in accuracies.items() if value is not None}
    for name, own in result.get("suggestions", {}).items():
        lines[f"{name} accuracy (suggested labels)"] = percent(own["accuracy"])
    if result["noise"]:
        nominal, actual = percent(result["noise"]["nominal"]), percent(result["noise"]["actual"])
        lines[f"noise ({result['noise']['kind']})"] = f"{nominal} nominal, {actual} actual"
    if result["start_epoch"] is not None:
        lines["targets updated after epoch"] = f"{result['start_epoch']} of {result['epochs']}"
    if result["label_recovery"] is not None:
        lines["label recovery"] = percent(result["label_recovery"])
    lines["likely label errors"] = f"{result['audit']['suspects']} of {len(run.data.train)} training labels"
    if result["unreadable"]:
        lines["unreadable files"] = f"{result['unreadable']}, listed in {run.folder.unreadable_file}"
    lines["report"] = str(run.folder.page)
    print_lines(lines)
    for name, own in result.get("suggestions", {}).items():
        print(
            f"{own['likely_errors']} likely errors in the {name} labels were not corrected, because only reviewers "
            "change them, so the accuracy on given labels hardly changes. Accuracy on suggested labels is agreement "
            "with a model and does not prove that the suggestions are right"
        )
