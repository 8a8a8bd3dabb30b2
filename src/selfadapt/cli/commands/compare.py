"""`selfadapt compare`"""

from pathlib import Path
from typing import Any

import typer

from selfadapt.cli.output import Output, count_bar, new_folder, percent, print_table, progress_bar
from selfadapt.cli.parameters import Jobs
from selfadapt.core.errors import Interrupted
from selfadapt.runs.config.request import Kind

KIND: Kind = "labels"
EXAMPLE = "Example: selfadapt compare digits --methods erm,elr,sat --noise symmetric:0.4 --seeds 3"


def command(
    given: dict[str, Any],
    data: str = typer.Argument(help="A name (selfadapt data list), or a folder, .csv, .parquet or .npz."),
    methods: str = typer.Option(
        "erm,sat", help="Comma-separated methods, or all methods for noisy labels: all.", rich_help_panel="Training"
    ),
    seeds: int = typer.Option(1, help="Number of seeds: --seed, --seed + 1 and so on.", rich_help_panel="Training"),
    jobs: int = Jobs,
    out: Path | None = typer.Option(
        None, help="Folder of the runs and the report. Default: a new one in runs/.", rich_help_panel="Output"
    ),
    resume: bool = typer.Option(
        False, "--resume", help="Resume in --out. This is the default.", rich_help_panel="Training"
    ),
) -> Output:
    """Train several methods on the same data, noise, network and seeds, and compare them.

    The same command with the same --out resumes. Finished runs are not repeated.
    """
    from selfadapt.runs.batch.comparison import compare

    path = out or new_folder(f"compare-{Path(data).stem}")
    try:
        result = compare(
            path,
            methods.split(","),
            seeds,
            {**given, "data": data},
            progress_bar,
            count_bar,
            jobs,
        )
    except Interrupted:
        raise Interrupted(f"resume with the same command and --out {path}") from None
    yield result
    print_table(
        ["method", "test accuracy", "±", "val. (given labels)", "label recovery", "time / erm"],
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
    print(f"report: {result['report']}")
