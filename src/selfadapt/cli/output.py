"""What commands print: progress on standard error, results on standard output."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from selfadapt.runs.train.bench import Stage

Json = typer.Option(False, "--json", help="Print one JSON object as the last line of standard output.")
Quiet = typer.Option(False, "--quiet", help="Show no progress.")


def print_json(content: Mapping[str, Any]) -> None:
    print(json.dumps(content), flush=True)


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table whose first column reads left and whose others are numbers."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for position, column in enumerate(columns):
        table.add_column(column, justify="right" if position else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def new_folder(name: str) -> Path:
    """runs/NAME, or runs/NAME-2 and so on where that is taken."""
    number, path = 1, Path("runs") / name
    while path.exists():
        number += 1
        path = Path("runs") / f"{name}-{number}"
    return path


@contextmanager
def count_bar(words: str, *, quiet: bool, notice: str | None = None) -> Iterator[Callable[[int, int], None]]:
    """A bar for work that counts (done, total), on a terminal; elsewhere nothing. It shows once there is work.

    So does a `notice`, at the latest when all went well: a mistake that stops the work at once gets its own line alone.
    """
    with _count_bar(words, quiet=quiet) as advance:
        untold = [] if quiet or notice is None else [notice]

        def tell() -> None:
            while untold:
                print(untold.pop(), file=sys.stderr)

        def on_progress(done: int, total: int) -> None:
            tell()
            advance(done, total)

        yield on_progress
        tell()


@contextmanager
def _count_bar(words: str, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    if quiet or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(words, total=None, visible=False)
        yield lambda done, total: progress.update(task, total=total, completed=done, visible=True)


@contextmanager
def progress_bar(words: str, *, quiet: bool) -> Iterator[Callable[["Stage"], None]]:
    """A bar over all steps of a training with the time left, on a terminal; elsewhere nothing."""
    if quiet or not sys.stderr.isatty():
        yield lambda stage: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[stage]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(words, total=None, stage="")

        def advance(stage: "Stage") -> None:
            progress.update(task, total=stage.total, completed=stage.done, stage=stage.description)

        yield advance
