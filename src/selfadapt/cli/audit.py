"""`selfadapt audit`"""

from pathlib import Path

import typer

from selfadapt.cli.output import Json, Quiet, percent, print_json
from selfadapt.cli.training import Device, opened

EXAMPLE = "Example: selfadapt audit runs/first"


def command(
    run: Path = typer.Argument(help="The folder of a run, finished or not."),
    device: str = Device,
    quiet: bool = Quiet,
    as_json: bool = Json,
) -> None:
    """List the labels of RUN that look wrong, with suggestions, in labels.csv."""
    from selfadapt.report.page import write_run_page
    from selfadapt.runs.audit import audit_training, draw_suspects

    own = opened(run, device, quiet=quiet or as_json)
    summary, verdicts = audit_training(own.folder, own.data, own.training)
    draw_suspects(own.folder, own.data, verdicts)
    write_run_page(own.folder)
    if as_json:
        print_json(summary)
        return
    rate = percent(summary["estimated_noise_rate"])
    print(f"suspect labels      {summary['suspects']} of {len(own.data.train)}, {rate}")
    if "precision" in summary:
        print(f"truly wrong         {summary['wrong']}")
        print(f"precision, recall   {percent(summary['precision'])}, {percent(summary['recall'])}")
        print(f"labels recovered    {percent(summary['recovery'])}")
    print(f"the list            {summary['labels']}")
