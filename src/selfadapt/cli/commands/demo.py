"""`selfadapt demo`"""

import shutil
import sys
from pathlib import Path

import typer

from selfadapt.cli.output import Output, new_folder, percent, print_table, progress_bar
from selfadapt.core.errors import Interrupted

EXAMPLE = "Example: selfadapt demo"


def command(
    out: Path | None = typer.Option(None, help="Folder of the two runs and the report. Default: a new one in runs/."),
    seed: int = typer.Option(0, help="Random seed."),
) -> Output:
    """Compare ordinary and self-adaptive training on handwritten digits with 40 % label noise.

    Takes about a minute on two cores, without downloads.
    """
    from selfadapt.runs.batch.demo_runs import METHODS, run_demo

    path = out or new_folder("demo")
    titles = {"erm": "ordinary training", "sat": "self-adaptive training"}
    try:
        result = run_demo(path, seed, lambda method: progress_bar(titles[method]))
    except Interrupted:
        raise Interrupted(f"resume with: selfadapt demo --seed {seed} --out {path}") from None
    yield result
    noise, methods = result["noise"], result["methods"]
    print(f"{result['data']}, {percent(noise['actual'])} of the training labels are wrong ({noise['kind']} noise)")
    print_table(
        ["", "test accuracy", "label recovery"],
        [
            [titles[name], percent(methods[name]["test_accuracy"]), percent(methods[name]["label_recovery"])]
            for name in METHODS
        ],
    )
    audit = result["audit"]
    print(
        f"{audit['suspects']} labels are listed as likely errors; {percent(audit['precision'])} of them are wrong: "
        f"{audit['labels']}"
    )
    print(f"report: {result['report']}")
    program = "selfadapt" if shutil.which("selfadapt") else sys.argv[0]  # as in .venv/bin/selfadapt
    print(f"Your photos, one folder per class: {program} train photos, then {program} audit RUN")
