"""`selfadapt report`"""

from pathlib import Path

import typer

from selfadapt.cli.output import Output

EXAMPLE = "Example: selfadapt report runs/digits-erm runs/digits-sat --out runs/both.html"


def command(
    runs: list[Path] = typer.Argument(help="Folders of one or several runs."),
    out: Path | None = typer.Option(
        None, help="Output file. Default: report.html, in the run folder for a single run."
    ),
) -> Output:
    """Write the report of each run again, and one report that compares them if there are several."""
    from selfadapt.report.comparison_page import write_comparison_page
    from selfadapt.report.page import write_run_page
    from selfadapt.run_folder.folder import RunFolder

    pages = [write_run_page(RunFolder(run)) for run in runs]
    if len(runs) == 1 and out is not None:
        pages.append(write_run_page(RunFolder(runs[0]), out))
    elif len(runs) > 1:
        pages.append(write_comparison_page([RunFolder(run) for run in runs], out or Path("report.html")))
    yield {"report": str(pages[-1])}
    print(pages[-1])
