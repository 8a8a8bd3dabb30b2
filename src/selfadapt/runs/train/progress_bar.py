"""The progress bar: on a terminal, or in a notebook while its cell runs, and nowhere else."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

from selfadapt.core.progress import StageProgress, no_stages

_PAUSE = 0.2  # seconds between two updates in a notebook, each of which is a message to the browser


@contextmanager
def progress_bar(description: str, *, transient: bool = False) -> Iterator[StageProgress]:
    """Show how far something is, for the duration of the context. The bar appears with the first progress.

    A transient bar disappears from a terminal at the end.
    """
    if _in_notebook():
        yield _NotebookBar(description)
    elif not sys.stderr.isatty():
        yield no_stages
    else:
        with _terminal_bar(description, transient=transient) as advance:
            yield advance


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None


class _NotebookBar:
    """An HTML element that is replaced as the training proceeds. It needs no widgets."""

    def __init__(self, description: str) -> None:
        self._description, self._shown = description, 0.0
        self._handle: Any = None

    def __call__(self, stage: str, done: int, total: int) -> None:
        from IPython.display import HTML, display

        now = time.monotonic()
        if done < total and now < self._shown + _PAUSE:
            return
        self._shown = now
        bar = f'<progress max="{total}" value="{done}" style="width:20em"></progress>'
        shown = HTML(f"<div>{escape(self._description)} {bar} {escape(stage)}</div>")
        if self._handle is None:
            self._handle = display(shown, display_id=True)
        else:
            self._handle.update(shown)


@contextmanager
def _terminal_bar(description: str, *, transient: bool) -> Iterator[StageProgress]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    stage_column = TextColumn("{task.fields[stage]}")
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), stage_column, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=transient) as progress:
        task = progress.add_task(description, total=None, stage="", visible=False)
        yield lambda stage, done, total: progress.update(task, total=total, completed=done, stage=stage, visible=True)
