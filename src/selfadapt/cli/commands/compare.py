"""`selfadapt compare`"""

from pathlib import Path
from typing import Any

import typer

from selfadapt.cli.output import Json, Quiet, count_bar, new_folder, percent, print_json, print_table, progress_bar
from selfadapt.cli.training import Jobs
from selfadapt.core.errors import Interrupted
from selfadapt.runs.config.request import Kind

KIND: Kind = "labels"  # whose options the command has
EXAMPLE = "Example: selfadapt compare digits --methods erm,elr,sat --noise symmetric:0.4 --seeds 3"


def command(
    given: dict[str, Any],
    data: str = typer.Argument(help="A name (selfadapt data list), or a folder, .csv, .parquet or .npz."),
    methods: str = typer.Option("erm,sat", help="Methods, parted by commas; `all` for all that are for noisy labels."),
    seeds: int = typer.Option(1, help="How many seeds: each method runs with --seed, --seed + 1 and so on."),
    jobs: int = Jobs,
    out: Path | None = typer.Option(
        None, help="The folder for all runs and the page; one that is there already goes on. Default: below runs/."
    ),
    resume: bool = typer.Option(False, "--resume", help="Go on in --out, which this command does anyway."),
    quiet: bool = Quiet,
    as_json: bool = Json,
) -> None:
    """Train each method on the same data, noise, network and seeds, and lay the results side by side.

    Run the same command with the same --out again to go on where it was stopped; finished runs are not repeated.
    """
    from selfadapt.runs.batch.comparison import compare

    path = out or new_folder(f"compare-{Path(data).stem}")
    try:
        result = compare(
            path,
            methods.split(","),
            seeds,
            {**given, "data": data},
            lambda words: progress_bar(words, quiet=quiet or as_json),
            lambda words: count_bar(words, quiet=quiet or as_json),
            jobs,
        )
    except Interrupted:
        raise Interrupted(f"go on with the same command and --out {path}") from None
    if as_json:
        print_json(result)
        return
    print_table(
        ["method", "test accuracy", "±", "validation, as given", "labels recovered", "time / erm"],
        [
            [
                row["method"],
                percent(row["test_accuracy_mean"]),
                percent(row["test_accuracy_std"]),
                percent(row["validation_accuracy_mean"]),
                percent(row["label_recovery"]),
                "–" if row["seconds_relative_to_erm"] is None else f"{row['seconds_relative_to_erm']:.2f}",
            ]
            for row in result["rows"]
        ],
    )
    for row in result["rows"]:
        if row["told"]:
            print(f"{row['method']}: {row['told']}")
    print(f"Open the page: {result['report']}")
