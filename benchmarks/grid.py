"""A grid of runs, each in a process with one thread; finished runs are not repeated."""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

Job = TypeVar("Job")


def program(*arguments: str | Path) -> None:
    """Run `selfadapt` with these arguments; raise a RuntimeError if it fails."""
    command = [sys.executable, "-m", "selfadapt", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")


def is_finished(folder: Path) -> bool:
    path = folder / "run.json"
    return path.exists() and "result" in json.loads(path.read_text())


def work_through(
    jobs_of: Callable[[str], Iterable[Job]], work: Callable[[Job], None], done: Callable[[], None]
) -> None:
    """The command line of a grid: `--jobs` at once, selected by `--only`; `done` writes the page after each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="prefix of a name")
    chosen = parser.parse_args()
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for _ in pool.map(work, jobs_of(chosen.only)):
            done()
    done()


def shown(values: list[float], digits: int = 1) -> str:
    """Mean ± standard deviation; a dash if there are no values."""
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}"


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table, followed by an empty line."""
    lines = (f"| {' | '.join(cells)} |" for cells in (header, *rows))
    first, *others = lines
    return [first, "|---" * len(header) + "|", *others, ""]


def put_between(page: Path, mark: str, lines: list[str]) -> None:
    """Put these lines between the marks `<!-- mark -->` and `<!-- end of mark -->`; the rest is written by hand."""
    first, last = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
    text = page.read_text(encoding="utf-8")
    before, after = text.split(first)[0], text.split(last)[1]
    page.write_text("\n".join([before + first, "", *lines, last + after]), encoding="utf-8")
