"""`selfadapt pretrain`"""

from pathlib import Path
from typing import Any

import typer

from selfadapt.cli.output import Output, percent, print_lines
from selfadapt.cli.parameters import Devices, LogTo, Out, Resume
from selfadapt.cli.training import run_to_the_end
from selfadapt.runs.config.request import Kind

KIND: Kind = "pretraining"
EXAMPLE = "Example: selfadapt pretrain cifar10 --method sat --views 1 --epochs 100 --out runs/features"


def command(
    given: dict[str, Any],
    data: str | None = typer.Argument(
        None,
        help="A name, a folder of images with or without class folders, a table or an .npz file. Labels are optional.",
    ),
    method: str | None = typer.Option(
        None,
        help="Method (see selfadapt methods). --method NAME --help shows its options. Default: sat.",
        rich_help_panel="Training",
    ),
    out: Path | None = Out,
    resume: bool = Resume,
    devices: int = Devices,
    log_to: str | None = LogTo,
) -> Output:
    """Pretrain a network on the images of DATA without labels.

    If labels are known, an online linear probe on detached features measures progress. Collapsed features give a
    warning.
    """
    given |= {"data": data, "method": method}
    run, result = run_to_the_end(KIND, given, out, resume=resume, devices=devices, log_to=log_to)
    yield result
    print_lines(
        {
            "online probe (test)": percent(result["online_probe_accuracy"]),
            "feature std, effective rank": f"{result['feature_std']:.2f}, {result['effective_rank']:.1f}",
            "seconds per epoch": str(result["seconds_per_epoch"]),
            "report": str(run.folder.page),
        }
    )
    if result["collapsed"]:
        typer.secho("WARNING: the features have collapsed; do not use them", fg="red", bold=True, err=True)
