"""Whether the figures of a run are drawn.

Drawing takes three quarters of a training on a few hundred samples, so matplotlib draws only where a test looks at
figures or follows a page of the documentation; elsewhere the run's page has empty images. Everything else is as it is.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from selfadapt.core.atomic_files import atomic_write
from selfadapt.report import figures, run_figures

_OF_A_RUN = ("accuracy_curves", "pretraining_curves", "over_columns", "matrix")


def _leave_blank(*given: Any, **options: Any) -> None:
    (path,) = (value for value in given if isinstance(value, Path))
    with atomic_write(path) as file:
        file.write('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 400 300"/>\n')


_BLANK: Any = SimpleNamespace(**{**vars(figures), **dict.fromkeys(_OF_A_RUN, _leave_blank)})


def draw_figures(really: bool) -> None:
    vars(run_figures)["figures"] = figures if really else _BLANK


def figures_are_drawn() -> bool:
    return vars(run_figures)["figures"] is figures
