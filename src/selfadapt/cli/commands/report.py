"""`selfadapt report`"""

from pathlib import Path

import typer

from selfadapt.cli.output import Json, print_json

EXAMPLE = "Example: selfadapt report runs/digits-erm runs/digits-sat --out runs/both.html"


def command(
    runs: list[Path] = typer.Argument(help="The folders of one run or several."),
    out: Path | None = typer.Option(
        None, help="The page. Default: report.html, in the run folder if there is one run."
    ),
    as_json: bool = Json,
) -> None:
    """Draw the figures of RUNS anew and write their page: one page for a run, or one over several."""
    from selfadapt.report.page import write_comparison_page, write_run_page
    from selfadapt.run_folder.folder import RunFolder

    pages = [write_run_page(RunFolder(run)) for run in runs]
    if len(runs) == 1 and out is not None:
        pages.append(write_run_page(RunFolder(runs[0]), out))
    elif len(runs) > 1:
        pages.append(write_comparison_page([RunFolder(run) for run in runs], out or Path("report.html")))
    if as_json:
        print_json({"report": str(pages[-1])})
    else:
        print(pages[-1])
