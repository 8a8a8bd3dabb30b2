"""`selfadapt predict`"""

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import typer

from selfadapt.cli.output import Quiet, count_bar
from selfadapt.core.errors import UserError

EXAMPLE = "Example: selfadapt predict runs/first new/*.png, or: find new -name '*.png' | selfadapt predict runs/first -"


def command(
    run: Path = typer.Argument(help="The folder of a trained run."),
    paths: list[str] = typer.Argument(
        help="Image files, folders of them, .npy of images or vectors, tables of rows, or - to read paths from "
        "standard input."
    ),
    batch_size: int = typer.Option(256, help="Images that are answered together."),
    everything: bool = typer.Option(False, "--all", help="Answer everything, whatever was calibrated."),
    device: str = typer.Option("auto", help="auto, cpu, cuda, mps."),
    quiet: bool = Quiet,
    as_json: bool = typer.Option(True, "--json", help="Lines of JSON, which is what this command always prints."),
) -> None:
    """Answer each image with a class, or abstain by the threshold of `selfadapt calibrate`: a line of JSON for each.

    A line has path, class (null where the run abstains), abstained, confidence and guess, the class in either case; or
    path and error, for a file that cannot be read.
    """
    if batch_size < 1:
        raise UserError(f"--batch-size {batch_size} must be at least 1")
    from selfadapt.run_folder.folder import RunFolder
    from selfadapt.runs.inspect.predictor import Predictor

    predictor = Predictor.of_run(RunFolder(run), device, abstain=not everything)
    listed = list(_files(paths))
    files, done, answers, broken = iter(listed), 0, 0, 0
    with count_bar("answering", quiet=quiet) as count:
        while batch := list(islice(files, batch_size)):
            for record in predictor.answer(batch):
                answers, broken = answers + 1, broken + ("error" in record)
                print(json.dumps(record, ensure_ascii=False))
            sys.stdout.flush()
            done += len(batch)
            count(done, len(listed))
    if not listed:
        raise UserError("there are no files to answer")
    if broken and broken == answers:
        raise UserError(f"none of {answers} inputs could be answered; their lines say why")
    if broken:
        print(f"warning: {broken} of {answers} inputs could not be answered; their lines say why", file=sys.stderr)


def _files(paths: Iterable[str]) -> Iterator[Path]:
    for given in paths:
        if given == "-":
            yield from (Path(line.rstrip("\n")) for line in sys.stdin if line != "\n")
            continue
        path = Path(given)
        if not path.exists():
            raise UserError(f"there is no file or folder {path}")
        if path.is_dir():
            yield from (file for file in sorted(path.rglob("*")) if file.is_file() and not file.name.startswith("."))
        else:
            yield path
