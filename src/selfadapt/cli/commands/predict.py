"""`selfadapt predict`"""

import json
import sys
from collections.abc import Iterable, Iterator
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from selfadapt.cli.output import count_bar
from selfadapt.cli.parameters import Device
from selfadapt.core.errors import UserError

if TYPE_CHECKING:
    from selfadapt.runs.inspect.onnx_predictor import OnnxPredictor
    from selfadapt.runs.inspect.predictor import Predictor

EXAMPLE = "Example: selfadapt predict runs/first new/*.png, or: find new -name '*.png' | selfadapt predict runs/first -"


def command(
    run: Path = typer.Argument(help="Folder of a trained run, or an .onnx file that `selfadapt export` wrote."),
    paths: list[str] = typer.Argument(
        help="Image files, folders of images, .npy arrays, tables, or - to read paths from standard input."
    ),
    batch_size: int = typer.Option(256, help="Images per batch."),
    everything: bool = typer.Option(False, "--all", help="Never abstain, even if the run is calibrated."),
    device: str = Device,
) -> None:
    """Predict the class of each input, or abstain below the threshold of `selfadapt calibrate`; one JSON line each.

    The keys are path, class (null if the run abstains), abstained, confidence and guess (the predicted class in either
    case); or path and error, for a file that cannot be read.
    """
    if batch_size < 1:
        raise UserError(f"--batch-size {batch_size} must be at least 1")
    predictor = _predictor(run, device, abstain=not everything)
    listed = list(_files(paths))
    files, done, answers, broken = iter(listed), 0, 0, 0
    with count_bar("predicting") as count:
        while batch := list(islice(files, batch_size)):
            for record in predictor.answer(batch):
                answers, broken = answers + 1, broken + ("error" in record)
                print(json.dumps(record, ensure_ascii=False))
            sys.stdout.flush()
            done += len(batch)
            count(done, len(listed))
    if not listed:
        raise UserError("there are no input files")
    if broken and broken == answers:
        raise UserError(f"no prediction for any of {answers} inputs; their lines give the reasons")
    if broken:
        print(f"warning: no prediction for {broken} of {answers} inputs; their lines give the reasons", file=sys.stderr)


def _predictor(run: Path, device: str, *, abstain: bool) -> "OnnxPredictor | Predictor":
    if run.suffix == ".onnx" and not run.is_dir():
        from selfadapt.runs.inspect.onnx_predictor import OnnxPredictor  # does not import torch

        if not run.exists():
            raise UserError(f"{run} does not exist; write it with: selfadapt export RUN --format onnx")
        return OnnxPredictor.open(run, abstain=abstain)
    from selfadapt.run_folder.folder import RunFolder
    from selfadapt.runs.inspect.predictor import Predictor

    return Predictor.of_run(RunFolder(run), device, abstain=abstain)


def _files(paths: Iterable[str]) -> Iterator[Path]:
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
