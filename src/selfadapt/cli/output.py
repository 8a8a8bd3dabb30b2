"""Output of the commands: progress on standard error, results on standard output."""

import json
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfadapt.core.progress import ProgressCallback, StageProgress, no_stages

Output = Generator[Mapping[str, Any], None, None]  # of a command: see as_command


@dataclass
class _OutputMode:
    """How the running command prints."""

    json: bool = False
    quiet: bool = False


OUTPUT = _OutputMode()


def print_json(content: Mapping[str, Any]) -> None:
    print(json.dumps(content), flush=True)


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns, whatever the width of the terminal. The first is text, the others are numbers."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for first, *others in (columns, *rows):
        cells = (text.rjust(width) for text, width in zip(others, widths[1:], strict=True))
        print(first.ljust(widths[0]), *cells, sep="  ")


def new_folder(name: str) -> Path:
    """runs/NAME, or runs/NAME-2 and so on if that exists."""
    number, path = 1, Path("runs") / name
    while path.exists():
        number += 1
        path = Path("runs") / f"{name}-{number}"
    return path


@contextmanager
def progress_bar(description: str, *, transient: bool = False) -> Iterator[StageProgress]:
    """A progress bar over stages, on a terminal only."""
    if OUTPUT.quiet:
        yield no_stages
        return
    from selfadapt.runs.train import progress_bar as bars

    with bars.progress_bar(description, transient=transient) as advance:
        yield advance


@contextmanager
def count_bar(description: str, *, notice: str | None = None) -> Iterator[ProgressCallback]:
    """A progress bar for (done, total), on a terminal only.

    The `notice` appears with the first progress, or at the end without errors: an error in the input is then the only
    line.
    """
    notices = [] if OUTPUT.quiet or notice is None else [notice]
    with progress_bar(description, transient=True) as advance:

        def on_progress(done: int, total: int) -> None:
            while notices:
                print(notices.pop(), file=sys.stderr)
            advance("", done, total)

        yield on_progress
        while notices:
            print(notices.pop(), file=sys.stderr)


def print_lines(lines: Mapping[str, str]) -> None:
    """Print `name  value` lines, aligned."""
    width = max(map(len, lines)) + 2
    for name, value in lines.items():
        print(f"{name:<{width}}{value}")
