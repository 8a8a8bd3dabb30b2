"""`selfadapt pretrain`"""

from pathlib import Path
from typing import Any

import typer

from selfadapt.cli.output import Json, Quiet, percent, print_json
from selfadapt.cli.training import Devices, Out, Resume, run_in_processes, run_to_the_end
from selfadapt.runs.config.request import Kind

KIND: Kind = "pretraining"  # whose options the command has
EXAMPLE = "Example: selfadapt pretrain cifar10 --method sat --views 1 --epochs 100 --out runs/features"


def command(
    given: dict[str, Any],
    data: str | None = typer.Argument(
        None, help="A name, a folder of images with or without class folders, a table, an .npz. Labels are not needed."
    ),
    method: str | None = typer.Option(
        None, help="`selfadapt methods` lists all, and --method NAME --help shows the options of one. Default: sat."
    ),
    out: Path | None = Out,
    resume: bool = Resume,
    devices: int = Devices,
    quiet: bool = Quiet,
    as_json: bool = Json,
) -> None:
    """Learn features from the images of DATA without labels, and write the run folder with its page.

    Where labels are known, a linear layer learns beside the network, without touching it, to show how it gets on. A
    network whose features collapse says so.
    """
    given |= {name: value for name, value in (("data", data), ("method", method)) if value is not None}
    run_in_processes(devices, data, out, resume=resume)
    from selfadapt.runs.train.unlabelled import pretrain

    done = run_to_the_end(
        KIND, "pretrain", pretrain, given, out, resume=resume, devices=devices, quiet=quiet or as_json
    )
    if done is None:
        return
    run, result = done
    if as_json:
        print_json(result)
    else:
        print(f"online probe, test   {percent(result['online_probe_accuracy'])}")
        print(f"spread, rank         {result['feature_std']:.2f}, {result['effective_rank']:.1f}")
        print(f"seconds an epoch     {result['seconds_per_epoch']}")
        print(f"page                 {run.folder.page}")
    if result["collapsed"]:
        typer.secho("WARNING: the features have collapsed; do not use them", fg="red", bold=True, err=True)
