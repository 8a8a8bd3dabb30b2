"""`selfadapt audit`"""

from pathlib import Path

import typer

from selfadapt.cli.output import Json, percent, print_json

EXAMPLE = "Example: selfadapt audit runs/first"


def command(
    run: Path = typer.Argument(help="The folder of a run, finished or not."),
    as_json: bool = Json,
) -> None:
    """List the labels of RUN that look wrong, with suggestions, in labels.csv."""
    from selfadapt.recipes.audit import audit_training, draw_suspects
    from selfadapt.recipes.run import reopen
    from selfadapt.report.page import write_run_page
    from selfadapt.report.results import RunFolder

    opened = reopen(RunFolder(run), to_train=False)
    summary, verdicts = audit_training(opened.folder, opened.data, opened.training)
    draw_suspects(opened.folder, opened.data, verdicts)
    write_run_page(opened.folder)
    if as_json:
        print_json(summary)
        return
    rate = percent(summary["estimated_noise_rate"])
    print(f"suspect labels      {summary['suspects']} of {len(opened.data.train)}, {rate}")
    if "precision" in summary:
        print(f"truly wrong         {summary['wrong']}")
        print(f"precision, recall   {percent(summary['precision'])}, {percent(summary['recall'])}")
        print(f"labels recovered    {percent(summary['recovery'])}")
    print(f"the list            {summary['labels']}")
