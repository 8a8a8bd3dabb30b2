"""`selfadapt demo`"""

from pathlib import Path

import typer

from selfadapt.cli.output import Json, Quiet, new_folder, percent, print_json, print_table, progress_bar
from selfadapt.core.errors import Interrupted

EXAMPLE = "Example: selfadapt demo"


def command(
    out: Path | None = typer.Option(
        None, help="The folder for the two runs and the page. Default: a new one below runs/."
    ),
    seed: int = typer.Option(0, help="Decides every random number."),
    quiet: bool = Quiet,
    as_json: bool = Json,
) -> None:
    """Handwritten digits with 40 % label noise: ordinary training against self-adaptive training.

    Takes about a minute on two cores and needs no download.
    """
    from selfadapt.runs.batch.demo_runs import METHODS, run_demo

    path = out or new_folder("demo")
    words = {"erm": "ordinary training", "sat": "self-adaptive training"}
    try:
        result = run_demo(path, seed, lambda method: progress_bar(words[method], quiet=quiet or as_json))
    except Interrupted:
        raise Interrupted(f"go on with: selfadapt demo --seed {seed} --out {path}") from None
    if as_json:
        print_json(result)
        return
    noise, methods = result["noise"], result["methods"]
    print(f"{result['data']}, {percent(noise['actual'])} of the training labels are wrong ({noise['kind']} noise)")
    print_table(
        ["", "test accuracy", "labels recovered"],
        [
            [words[name], percent(methods[name]["test_accuracy"]), percent(methods[name]["label_recovery"])]
            for name in METHODS
        ],
    )
    audit = result["audit"]
    print(
        f"{audit['suspects']} labels look wrong; {percent(audit['precision'])} of them are. The list: {audit['labels']}"
    )
    print(f"Open the page: {result['report']}")
    print("Your own photos, a folder for each class: selfadapt train photos, then selfadapt audit RUN")
