"""`selfadapt shift`"""

from functools import partial
from pathlib import Path

import typer

from selfadapt.cli.output import Json, Quiet, count_bar, percent, print_json, print_table
from selfadapt.cli.training import Device, opened

EXAMPLE = "Example: selfadapt shift runs/first --against runs/second"


def command(
    run: Path = typer.Argument(help="The folder of a trained run on images, with a test part."),
    against: Path | None = typer.Option(None, help="Another run on the same data, to compare with."),
    data: Path | None = typer.Option(
        None, help="A folder with the published arrays of CIFAR-10-C. Default: images are made from the test part."
    ),
    levels: str | None = typer.Option(
        None, help="How strong the five levels are: cifar or imagenet. Default: imagenet from 96 pixels on."
    ),
    images: int | None = typer.Option(None, help="So many test images, every class with its share. Default: all."),
    seed: int = typer.Option(0, help="Decides which images those are, and what is drawn for each."),
    device: str = Device,
    quiet: bool = Quiet,
    as_json: bool = Json,
) -> None:
    """How many test images RUN gets right under 15 kinds of corruption (noise, blur, weather, digital) at 5 levels.

    What was measured so far is kept: the same command goes on where it was stopped. The page of RUN shows the table.
    """
    from selfadapt.core.errors import Interrupted
    from selfadapt.report.page import write_run_page
    from selfadapt.runs.inspect import shift_accuracy

    own = opened(run, device, quiet=quiet or as_json)
    other = None if against is None else opened(against, device, quiet=quiet or as_json)
    try:
        with count_bar("corrupting and answering", quiet=quiet or as_json) as on_progress:
            measured = partial(
                shift_accuracy.shift_run,
                published=data,
                images=images,
                levels=levels,
                seed=seed,
                on_progress=on_progress,
            )
            found = measured(own)
            if other is not None:
                found = shift_accuracy.against(own, found, other, measured(other))
    except Interrupted as interruption:
        raise Interrupted(f"{interruption}; the same command goes on where it was") from None
    write_run_page(own.folder)
    if as_json:
        print_json({key: value for key, value in found.items() if key != "about"})
        return
    steps = list(found["levels"])
    more = [] if other is None else ["error ratio"]
    rows = [[kind, *(percent(row[level]) for level in steps)] for kind, row in found["by_kind"].items()]
    rows.append(["mean", *(percent(value) for value in found["levels"].values())])
    if more:
        errors = (*found["corruption_errors"].values(), found["mean_corruption_error"])
        rows = [[*row, f"{error:.3f}"] for row, error in zip(rows, errors, strict=True)]
    print_table(["level", *steps, *more], rows)
    print(f"clean  {percent(found['clean_accuracy'])}, mean under shift  {percent(found['mean'])}")
    for line in found["notes"]:
        print(f"note: {line}")
    print(f"page  {own.folder.page}")
