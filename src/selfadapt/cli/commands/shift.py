"""`selfadapt shift`"""

from functools import partial
from pathlib import Path

import typer

from selfadapt.cli.output import Output, count_bar, percent, print_table
from selfadapt.cli.parameters import Device, Processes
from selfadapt.cli.processes import in_processes
from selfadapt.cli.training import opened
from selfadapt.runs.inspect.inspection_settings import ShiftSettings

SETTINGS = ShiftSettings
EXAMPLE = "Example: selfadapt shift runs/first --against runs/second"


def command(
    given: ShiftSettings,
    run: Path = typer.Argument(help="Folder of a trained run on images, with a test split."),
    against: Path | None = typer.Option(None, help="Another run on the same data, for comparison."),
    device: str = Device,
    devices: int = Processes,
) -> Output:
    """Measure the accuracy of RUN under 15 corruptions (noise, blur, weather, digital) at 5 severity levels.

    The same command resumes an interrupted measurement. The report of RUN shows the table.
    """
    from selfadapt.report.page import write_run_page
    from selfadapt.runs.inspect import shift_accuracy

    with in_processes(devices, device, resumes=True):
        own = opened(run, device)
        other = None if against is None else opened(against, device)
        with count_bar("evaluating corruptions") as on_progress:
            measured = partial(shift_accuracy.shift_run, settings=given, on_progress=on_progress)
            found = measured(own)
            if other is not None:
                found = shift_accuracy.against(own, found, other, measured(other))
    write_run_page(own.folder)
    yield {key: value for key, value in found.items() if key != "about"}
    steps = list(found["levels"])
    more = [] if other is None else ["error ratio"]
    rows = [[kind, *(percent(row[level]) for level in steps)] for kind, row in found["by_kind"].items()]
    rows.append(["mean", *(percent(value) for value in found["levels"].values())])
    if more:
        errors = (*found["corruption_errors"].values(), found["mean_corruption_error"])
        rows = [[*row, f"{error:.3f}"] for row, error in zip(rows, errors, strict=True)]
    print_table(["level", *steps, *more], rows)
    print(f"clean accuracy {percent(found['clean_accuracy'])}, mean over corruptions {percent(found['mean'])}")
    for line in found["notes"]:
        print(f"note: {line}")
    print(f"report: {own.folder.page}")
