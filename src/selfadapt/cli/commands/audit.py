"""`selfadapt audit`"""

from collections.abc import Sequence
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
    """List the likely label errors of RUN, most likely wrong first, with suggestions, in labels.csv.

    Prints how many labels are wrong by estimate, for each split, and how many random looks in `selfadapt review` would
    settle that; after 50 decisions there, intervals that use them. report.html shows the same.
    """
    from selfadapt.report.page import write_run_page
    from selfadapt.review.statistics.label_figures import COLUMNS, label_figures
    from selfadapt.runs.inspect.label_audit import audit_training
    from selfadapt.runs.inspect.label_sheets import draw_label_sheets

    own = opened(run, device, quiet=quiet or as_json)
    audit = audit_training(own.folder, own.data, own.state)
    draw_label_sheets(own.folder, own.data, audit)
    write_run_page(own.folder)
    summary = audit.summary
    if as_json:
        print_json(summary)
        return
    figures = label_figures(own.folder)
    print(*figures.sentences, sep="\n")
    _print_aligned([COLUMNS, *(row.cells() for row in figures.rows)])
    if summary["duplicates"]:
        print(f"duplicates          {summary['duplicates']} groups, in {own.folder.duplicates_file}")
    few = [row["class"] for row in summary["classes"] if row["too_few"]]
    if few:
        print(f"too few to judge    {', '.join(few)}")
    if "precision" in summary:
        print(f"truly wrong         {summary['wrong']}")
        print(f"precision, recall   {percent(summary['precision'])}, {percent(summary['recall'])}")
        print(f"labels recovered    {percent(summary['recovery'])}")
    print(f"the list            {summary['labels']}")


def _print_aligned(rows: Sequence[Sequence[str]]) -> None:
    """Rows with their columns below each other, however wide the terminal is."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        print(
            first.ljust(widths[0]),
            *(text.rjust(width) for text, width in zip(others, widths[1:], strict=True)),
            sep="  ",
        )
