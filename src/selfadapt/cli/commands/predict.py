"""`selfadapt predict`"""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import typer

from selfadapt.cli.output import count_bar
from selfadapt.cli.parameters import Device, Processes
from selfadapt.cli.processes import in_processes
from selfadapt.core.errors import TrainingError, UserError, check_least
from selfadapt.core.launched import is_restarted

EXAMPLE = "Example: selfadapt predict runs/first new/*.png, or: find new -name '*.png' | selfadapt predict runs/first -"


def command(
    run: Path = typer.Argument(help="Folder of a trained run, or an .onnx file that `selfadapt export` wrote."),
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
    check_least({"--batch-size": batch_size})
    answers = broken = 0
    with _records(run, paths, batch_size, device, devices, abstain=not everything) as records:
        for record in records:
            answers, broken = answers + 1, broken + ("error" in record)
            print(json.dumps(record, ensure_ascii=False), flush=True)
    if broken and broken == answers:
        raise UserError(f"no prediction for any of {answers} inputs; their lines give the reasons")
    if broken:
        print(f"warning: no prediction for {broken} of {answers} inputs; their lines give the reasons", file=sys.stderr)


@contextmanager
def _records(
    run: Path, paths: Sequence[str], batch_size: int, device: str, devices: int, *, abstain: bool
) -> Iterator[Iterator[dict[str, Any]]]:
    """Yield the records that this process prints."""
    if run.suffix == ".onnx" and not run.is_dir():
        yield _by_exported_network(run, paths, batch_size, devices, abstain=abstain)
        return
    if is_restarted():  # lines were printed and standard input was read
        raise TrainingError("the predictions above are incomplete; run the command again")
    from selfadapt.run_folder.folder import RunFolder
    from selfadapt.runs.inspect.predictor import Predictor
    from selfadapt.runs.inspect.shared_predictions import answers_in_turn, listed_by_first

    with in_processes(devices, device) as first, count_bar("predicting") as on_progress:
        predictor = Predictor.of_run(RunFolder(run), device, abstain=abstain)
        files = listed_by_first(lambda: _files(paths))
        answers = answers_in_turn(predictor, files, batch_size, on_progress)
        yield (record for record in answers if first)


def _by_exported_network(
    run: Path, paths: Sequence[str], batch_size: int, devices: int, *, abstain: bool
) -> Iterator[dict[str, Any]]:
    """Yield the records of an .onnx file, without importing torch."""
    from selfadapt.runs.inspect.onnx_predictor import OnnxPredictor

    if devices > 1:
        raise UserError("an .onnx file runs in one process; leave --devices out")
    if not run.exists():
        raise UserError(f"{run} does not exist; write it with: selfadapt export RUN --format onnx")
    predictor, files = OnnxPredictor.open(run, abstain=abstain), _files(paths)
    with count_bar("predicting") as on_progress:
        for start in range(0, len(files), batch_size):
            yield from predictor.answer(files[start : start + batch_size])
            on_progress(min(start + batch_size, len(files)), len(files))


def _files(paths: Iterable[str]) -> list[Path]:
    files = list(_listed(paths))
    if not files:
        raise UserError("there are no input files")
    return files


def _listed(paths: Iterable[str]) -> Iterator[Path]:
    for given in paths:
        if given == "-":
            if isinstance(sys.stdin, TextIOWrapper):
                sys.stdin.reconfigure(errors="surrogateescape")  # file names need not be UTF-8
            yield from (Path(line.rstrip("\n")) for line in sys.stdin if line != "\n")
            continue
        path = Path(given)
        if not path.exists():
            raise UserError(f"{path} does not exist")
        if path.is_dir():
            yield from (file for file in sorted(path.rglob("*")) if file.is_file() and not file.name.startswith("."))
        else:
            yield path
