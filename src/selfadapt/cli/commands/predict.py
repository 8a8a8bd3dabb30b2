"""`selfadapt predict`"""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import typer

from selfadapt.cli.output import count_bar
from selfadapt.cli.parameters import Device, Processes
from selfadapt.cli.processes import in_processes
from selfadapt.core.errors import TrainingError, UserError
from selfadapt.engine.launch import is_restarted

EXAMPLE = "Example: selfadapt predict runs/first new/*.png, or: find new -name '*.png' | selfadapt predict runs/first -"


def command(
    run: Path = typer.Argument(help="Folder of a trained run."),
    paths: list[str] = typer.Argument(
        help="Image files, folders of images, .npy arrays, tables, or - to read paths from standard input."
    ),
    batch_size: int = typer.Option(256, help="Images per batch."),
    everything: bool = typer.Option(False, "--all", help="Never abstain, even if the run is calibrated."),
    device: str = Device,
    devices: int = Processes,
) -> None:
    """Predict the class of each input, or abstain below the threshold of `selfadapt calibrate`; one JSON line each.

    The keys are path, class (null if the run abstains), abstained, confidence and guess (the predicted class in either
    case); or path and error, for a file that cannot be read.
    """
    if batch_size < 1:
        raise UserError(f"--batch-size {batch_size} must be at least 1")
    if is_restarted():  # lines were printed and standard input was read
        raise TrainingError("the predictions above are incomplete; run the command again")
    from selfadapt.run_folder.folder import RunFolder
    from selfadapt.runs.inspect.predictor import Predictor
    from selfadapt.runs.inspect.shared_predictions import answers_in_turn, listed_by_first

    answers = broken = 0
    with in_processes(devices, device) as first, count_bar("predicting") as on_progress:
        predictor = Predictor.of_run(RunFolder(run), device, abstain=not everything)
        files = listed_by_first(lambda: list(_files(paths)))
        if not files:
            raise UserError("there are no input files")
        for record in answers_in_turn(predictor, files, batch_size, on_progress):
            if first:
                answers, broken = answers + 1, broken + ("error" in record)
                print(json.dumps(record, ensure_ascii=False), flush=True)
    if broken and broken == answers:
        raise UserError(f"no prediction for any of {answers} inputs; their lines give the reasons")
    if broken:
        print(f"warning: no prediction for {broken} of {answers} inputs; their lines give the reasons", file=sys.stderr)


def _files(paths: Iterable[str]) -> Iterator[Path]:
    for given in paths:
        if given == "-":
            yield from (Path(line.rstrip("\n")) for line in sys.stdin if line != "\n")
            continue
        path = Path(given)
        if not path.exists():
            raise UserError(f"{path} does not exist")
        if path.is_dir():
            yield from (file for file in sorted(path.rglob("*")) if file.is_file() and not file.name.startswith("."))
        else:
            yield path
