"""The table of docs/results/robustness.md on shift: ordinary against self-adaptive training under 15 corruptions.

    python -m benchmarks.shift              about a quarter of an hour on one core

A small network on a part of Fashion-MNIST, with its labels as they are and with 40 % of them redrawn. Both methods see
the same images, noise and seeds, and the same corrupted test images. Runs are kept below runs/shift, and what is
finished is not repeated.
"""

import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.grid import is_finished, program, put_between, shown, table, work_through

HOME = Path("runs/shift")
PAGE = Path("docs/results/robustness.md")
METHODS = ("erm", "sat")
RATES = ("0", "0.4")
SEEDS = (0, 1, 2)
LEVELS = ("1", "2", "3", "4", "5")
OPTIONS = ("fashion-mnist", "--limit", "1500", "--test-limit", "500", "--epochs", "12")

Job = tuple[str, int]  # noise rate and seed


def _folder(method: str, job: Job) -> Path:
    rate, seed = job
    return HOME / f"{method}-{rate}-{seed}"


def _run(job: Job) -> None:
    rate, seed = job
    noise = ("--noise", f"symmetric:{rate}") if float(rate) else ()
    for method in METHODS:
        folder = _folder(method, job)
        if not is_finished(folder):
            program(
                "train", *OPTIONS, "--method", method, *noise, "--seed", str(seed), "--resume", "--out", folder
            )  # fmt: skip
    plain, adaptive = (_folder(method, job) for method in METHODS)
    program("shift", adaptive, "--against", plain)
    print(adaptive, flush=True)


def _jobs(only: str) -> Iterable[Job]:
    return ((rate, seed) for rate in RATES if rate.startswith(only) for seed in SEEDS)


def _measured(rate: str) -> list[dict[str, Any]]:
    """What `shift --against` found for each seed."""
    files = (_folder("sat", (rate, seed)) / "shift.json" for seed in SEEDS)
    found = (json.loads(file.read_text()) for file in files if file.exists())
    return [one for one in found if "other" in one]


def _tables() -> list[str]:
    rows, kinds = [], {}
    for rate in RATES:
        found = _measured(rate)
        for method, parts in (("erm", [one["other"] for one in found]), ("sat", found)):
            cells = [[100 * part["clean_accuracy"] for part in parts]]
            cells += [[100 * part["levels"][level] for part in parts] for level in LEVELS]
            cells += [[100 * part["mean"] for part in parts]]
            rows.append([f"`{method}`, noise {rate}", str(len(parts)), *map(shown, cells)])
        kinds[rate] = [one["corruption_errors"] | {"mean": one["mean_corruption_error"]} for one in found]
    header = ["accuracy (%), mean over 15 kinds", "seeds", "clean", *(f"level {level}" for level in LEVELS), "all"]
    names = list(next((found[0] for found in kinds.values() if found), {}))
    ratios = [
        [name.replace("_", " "), *(shown([one[name] for one in kinds[rate]], digits=3) for rate in RATES)]
        for name in names
    ]
    below = [
        f"{sum(statistics.fmean(one[name] for one in kinds[rate]) < 1 for name in names[:-1])} of 15 (noise {rate})"
        for rate in RATES
        if kinds[rate]
    ]
    ratio_header = ["error of `sat` by that of `erm`", *(f"noise {rate}" for rate in RATES)]
    words = f"Kinds under which `sat` makes fewer errors: {', '.join(below)}."
    return [*table(header, rows), *table(ratio_header, ratios), words, ""]


def write_tables() -> None:
    put_between(PAGE, "shift", _tables())


if __name__ == "__main__":
    work_through(_jobs, _run, write_tables)
