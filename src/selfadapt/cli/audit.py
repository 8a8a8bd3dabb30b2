"""`selfadapt audit`"""

from pathlib import Path
from typing import Any

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
    audit = audit_training(own.folder, own.data, own.training)
    draw_suspects(own.folder, own.data, audit)
    write_run_page(own.folder)
    summary = audit.summary
    if as_json:
        print_json(summary)
        return
    print(f"suspect labels      {summary['suspects']} of {len(own.data.train)} training labels")
    for name, part in summary["parts"].items():
        if name != "train":
            print(f"{'':<20}{part['suspects']} of {part['labels']} {name} labels")
    print(f"labels that are wrong, by estimate  {_range(summary, 'estimated_noise_rate')}")
    if summary["expected_precision"] is not None:
        print(f"of the suspects, wrong  {_range(summary, 'expected_precision')}")
        print(f"of the wrong, suspect   {_range(summary, 'expected_recall')}")
    if summary["duplicates"]:
        print(f"copies of one sample  {summary['duplicates']} groups, in {own.folder.duplicates_file}")
    few = [row["class"] for row in summary["classes"] if row["too_few"]]
    if few:
        print(f"too few to judge    {', '.join(few)}")
    if "precision" in summary:
        print(f"truly wrong         {summary['wrong']}")
        print(f"precision, recall   {percent(summary['precision'])}, {percent(summary['recall'])}")
        print(f"labels recovered    {percent(summary['recovery'])}")
    print(f"the list            {summary['labels']}")


def _range(summary: dict[str, Any], name: str) -> str:
    value = percent(summary[name])
    if summary[f"{name}_low"] is None:
        return value
    from selfadapt.evaluation.label_quality import Interval

    low, high = summary[f"{name}_low"], summary[f"{name}_high"]
    ends = f"({percent(low)} to {percent(high)})"
    return f"cannot be told {ends}" if Interval(summary[name], low, high).says_little else f"{value} {ends}"
