"""The progress bar of a training: on a terminal, or in a notebook while its cell runs, and nowhere else."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

from selfadapt.runs.train.bench import Stage, StageCallback, no_stages

_PAUSE = 0.2  # seconds between two updates in a notebook, each of which is a message to the browser


@contextmanager
def progress_bar(description: str) -> Iterator[StageCallback]:
    """Show how far a training is, for the duration of the context."""
    if _in_notebook():
        yield _NotebookBar(description)
    elif not sys.stderr.isatty():
        yield no_stages
    else:
        with _terminal_bar(description) as advance:
            yield advance


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None


class _NotebookBar:
    """An HTML element that is replaced as the training proceeds. It needs no widgets."""

    def __init__(self, description: str) -> None:
        self._description, self._shown = description, 0.0
        self._handle: Any = None

    def __call__(self, stage: Stage) -> None:
        from IPython.display import HTML, display

        now = time.monotonic()
        if stage.done < stage.total and now < self._shown + _PAUSE:
            return
        self._shown = now
        bar = f'<progress max="{stage.total}" value="{stage.done}" style="width:20em"></progress>'
        shown = HTML(f"<div>{escape(self._description)} {bar} {escape(stage.description)}</div>")
        if self._handle is None:
            self._handle = display(shown, display_id=True)
        else:
            self._handle.update(shown)


@contextmanager
def _terminal_bar(description: str) -> Iterator[StageCallback]:
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
        task = progress.add_task(description, total=None, stage="")
        yield lambda stage: progress.update(task, total=stage.total, completed=stage.done, stage=stage.description)
