"""`selfadapt audit`"""

from collections.abc import Sequence
from pathlib import Path

import typer

from selfadapt.cli.output import OUTPUT, Output, percent, print_lines
from selfadapt.cli.parameters import Device, Processes
from selfadapt.cli.processes import in_processes
from selfadapt.cli.training import opened

EXAMPLE = "Example: selfadapt audit runs/first"


def command(
    run: Path = typer.Argument(help="Folder of a run, finished or not."),
    device: str = Device,
    devices: int = Processes,
) -> Output:
    """Write the likely label errors of RUN to labels.csv, most likely wrong first, with suggested labels.

    Prints the estimated number of wrong labels of each split, and how many labels to review at random (`selfadapt
    review`) to confirm it. After 50 decisions the estimates are confidence intervals. report.html shows the same.
    """
    from selfadapt.report.page import write_run_page
    from selfadapt.review.statistics.label_figures import COLUMNS, label_figures
    from selfadapt.runs.inspect.label_audit import audit_training
    from selfadapt.runs.inspect.label_sheets import draw_label_sheets

    with in_processes(devices, device) as first:
        own = opened(run, device, quiet=OUTPUT.quiet)
        audit = audit_training(own.folder, own.data, own.state)
        if not first:
            return
    draw_label_sheets(own.folder, own.data, audit)
    write_run_page(own.folder)
    summary = audit.summary
    yield summary
    figures = label_figures(own.folder)
    print(*figures.sentences, sep="\n")
    _print_aligned([COLUMNS, *(row.cells() for row in figures.rows)])
    lines = {}
    if summary["duplicates"]:
        lines["groups of duplicates"] = f"{summary['duplicates']}, in {own.folder.duplicates_file}"
    small = [row["class"] for row in summary["classes"] if row["too_few"]]
    if small:
        lines["classes with too few samples"] = ", ".join(small)
    if "precision" in summary:
        lines["wrong labels (known truth)"] = str(summary["wrong"])
        lines["precision, recall"] = f"{percent(summary['precision'])}, {percent(summary['recall'])}"
        lines["label recovery"] = percent(summary["recovery"])
    lines["label table"] = summary["labels"]
    print_lines(lines)


def _print_aligned(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in aligned columns, whatever the width of the terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        print(
            first.ljust(widths[0]),
            *(text.rjust(width) for text, width in zip(others, widths[1:], strict=True)),
            sep="  ",
        )
