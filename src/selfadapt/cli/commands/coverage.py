"""`selfadapt coverage`"""

from pathlib import Path
from typing import Any

import typer

from selfadapt.cli.output import Output, count_bar, percent, print_table
from selfadapt.cli.parameters import Device
from selfadapt.cli.training import opened

EXAMPLE = "Example: selfadapt coverage runs/first"
Passes = typer.Option(100, help="Forward passes of MC dropout, for a network with dropout; 0 skips it.")


def _cells(found: dict[str, Any], coverages: list[str], measure: str) -> list[str]:
    """The errors of a selector and its AURC. A selector trained for one coverage is shown at that coverage only."""
    only = found["trained_for"]
    errors = (percent(found[measure][key]).removesuffix(" %") if only in (None, key) else "–" for key in coverages)
    return [*errors, "–" if only else f"{found['aurc']:.4f}"]


def command(
    run: Path = typer.Argument(help="Folder of a trained run with a test split."),
    passes: int = Passes,
    device: str = Device,
) -> Output:
    """Measure the error of RUN on test data if it answers only a part (coverage) of it, for every selector.

    A selector is a measure of confidence. Thresholds are fitted on the validation split. Without one, the error is
    measured at the exact coverage of the test split, as in the paper. The report of RUN shows the curves.
    """
    from selfadapt.report.page import write_run_page
    from selfadapt.runs.inspect.abstention import measure_coverage

    own = opened(run, device)
    with count_bar("predicting") as on_progress:
        content = measure_coverage(own, passes, on_progress)
    write_run_page(own.folder)
    selectors = content["selectors"]
    yield content
    coverages = list(next(iter(selectors.values()))["coverage"])
    measure = "exact_coverage" if own.data.validation is None else "coverage"
    split = "test" if own.data.validation is None else "validation"
    print(f"test error in % at each coverage of the {split} data")
    print_table(
        ["selector", *(f"{100 * float(key):.0f} %" for key in coverages), "AURC"],
        [[name, *_cells(found, coverages, measure)] for name, found in selectors.items()],
    )
    for name, found in selectors.items():
        if found["trained_for"]:
            print(f"{name} was trained for a coverage of {percent(float(found['trained_for']))}")
    print(f"report: {own.folder.page}")
