"""`selfadapt train`"""

from pathlib import Path
from typing import Any

import typer

from selfadapt.cli.output import Json, Quiet, percent, print_json
from selfadapt.cli.training import Devices, Out, Resume, run_in_processes, run_to_the_end
from selfadapt.runs.config.request import Kind

KIND: Kind = "labels"  # whose options the command has
EXAMPLE = "Example: selfadapt train digits --method sat --noise symmetric:0.4 --out runs/first"


def command(
    given: dict[str, Any],
    data: str | None = typer.Argument(
        None, help="A name (selfadapt data list), or a folder, .csv, .parquet or .npz. May be left out with --resume."
    ),
    method: str | None = typer.Option(
        None,
        help="`selfadapt methods` lists all, and --method NAME --help shows the options of one. Default: sat; "
        "sat-folds for a linear head (photos on a CPU, vectors, tables).",
    ),
    out: Path | None = Out,
    resume: bool = Resume,
    devices: int = Devices,
    quiet: bool = Quiet,
    as_json: bool = Json,
) -> None:
    """Train on DATA, evaluate, audit the labels, and write the run folder with its page.

    The same command with --resume goes on where a run was stopped, to the same bits.
    """
    given |= {name: value for name, value in (("data", data), ("method", method)) if value is not None}
    run_in_processes(devices, data, out, resume=resume)
    from selfadapt.runs.train.labelled import train

    done = run_to_the_end(KIND, "train", train, given, out, resume=resume, devices=devices, quiet=quiet or as_json)
    if done is None:
        return
    run, result = done
    if as_json:
        print_json(result)
        return
    lines = {
        f"test accuracy ({result['network']})": percent(result["test_accuracy"]),
        "test, every class alike": percent(result["test_balanced_accuracy"]),
        "validation, labels as given": percent(result["validation_accuracy"]),
    }
    if result["noise"]:
        nominal, actual = percent(result["noise"]["nominal"]), percent(result["noise"]["actual"])
        lines[f"noise ({result['noise']['kind']})"] = f"{nominal} nominal, {actual} actual"
    if result["start_epoch"] is not None:
        lines["targets move after epoch"] = f"{result['start_epoch']} of {result['epochs']}"
    if result["label_recovery"] is not None:
        lines["labels recovered"] = percent(result["label_recovery"])
    lines["likely label errors"] = f"{result['audit']['suspects']} of {len(run.data.train)} training labels"
    if result["unreadable"]:
        lines["files that cannot be read"] = f"{result['unreadable']}, listed in {run.folder.unreadable_file}"
    lines["page"] = str(run.folder.page)
    for words, value in lines.items():
        print(f"{words:<29}{value}")
