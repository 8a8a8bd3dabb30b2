"""`selfadapt coverage`"""

from pathlib import Path
from typing import Any

import typer

from selfadapt.cli.output import Json, Quiet, count_bar, percent, print_json, print_table
from selfadapt.cli.training import Device, opened

EXAMPLE = "Example: selfadapt coverage runs/first"
Passes = typer.Option(100, help="Passes of MC-dropout, for a network with dropout; 0 leaves it out.")


def _cells(found: dict[str, Any], coverages: list[str], measure: str) -> list[str]:
    """The errors of a selector and its AURC; only the one that it was trained for, if it was trained for one."""
    only = found["trained_for"]
    errors = (percent(found[measure][key]).removesuffix(" %") if only in (None, key) else "–" for key in coverages)
    return [*errors, "–" if only else f"{found['aurc']:.4f}"]


def command(
    run: Path = typer.Argument(help="The folder of a trained run with a test part."),
    passes: int = Passes,
    device: str = Device,
    quiet: bool = Quiet,
    as_json: bool = Json,
) -> None:
    """The error of RUN on test data when it answers only where it is most confident, by every selector.

    Thresholds are fitted on the validation part; without one the error is that at exactly this coverage of the test
    part, as in the paper. The page of RUN gets the figure.
    """
    from selfadapt.report.page import write_run_page
    from selfadapt.runs.inspect.abstention import measure_coverage

    own = opened(run, device, quiet=quiet or as_json)
    with count_bar("answering", quiet=quiet or as_json) as on_progress:
        content = measure_coverage(own, passes, on_progress)
    write_run_page(own.folder)
    selectors = content["selectors"]
    if as_json:
        print_json(content)
        return
    coverages = list(next(iter(selectors.values()))["coverage"])
    measure = "exact_coverage" if own.data.validation is None else "coverage"
    asked = "of the test data itself" if own.data.validation is None else "asked for on validation data"
    print(f"error on test data in %, by the coverage {asked}")
    print_table(
        ["selector", *(f"{100 * float(key):.0f} %" for key in coverages), "AURC"],
        [[name, *_cells(found, coverages, measure)] for name, found in selectors.items()],
    )
    for name, found in selectors.items():
        if found["trained_for"]:
            print(
                f"{name} was trained for a coverage of {percent(float(found['trained_for']))} and is shown there alone"
            )
    print(f"page  {own.folder.page}")
