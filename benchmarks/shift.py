"""The table of docs/results/robustness.md on shift: ordinary against self-adaptive training under 15 corruptions.

    python -m benchmarks.shift              about a quarter of an hour on one core

Two small networks on a part of Fashion-MNIST, with its labels as they are and with 40 % of them redrawn: one that is
trained too briefly to memorise them, and one that memorises. Both methods see the same images, noise and seeds, and the
same corrupted test images. Runs are kept below runs/shift, and what is finished is not repeated.
"""

import json
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
OPTIONS = ("fashion-mnist", "--limit", "1500", "--test-limit", "500")
NETWORKS = {
    "resnet-small": ("--epochs", "12"),
    "mlp": ("--epochs", "40", "--augment", "none"),
}

Job = tuple[str, str, int]  # network, noise rate and seed


def _folder(method: str, job: Job) -> Path:
    network, rate, seed = job
    return HOME / network / f"{method}-{rate}-{seed}"


def _run(job: Job) -> None:
    network, rate, seed = job
    noise = ("--noise", f"symmetric:{rate}") if float(rate) else ()
    for method in METHODS:
        folder = _folder(method, job)
        if not is_finished(folder):
            program(
                "train", *OPTIONS, "--model", network, *NETWORKS[network], "--method", method, *noise,
                "--seed", str(seed), "--resume", "--out", folder,
            )  # fmt: skip
    plain, adaptive = (_folder(method, job) for method in METHODS)
    program("shift", adaptive, "--against", plain)
    print(adaptive, flush=True)


def _jobs(only: str) -> Iterable[Job]:
    networks = [network for network in NETWORKS if network.startswith(only)]
    return ((network, rate, seed) for network in networks for rate in RATES for seed in SEEDS)


def _measured(network: str, rate: str) -> list[dict[str, Any]]:
    """The results of `shift --against` for each seed."""
    files = (_folder("sat", (network, rate, seed)) / "shift.json" for seed in SEEDS)
    found = (json.loads(file.read_text()) for file in files if file.exists())
    return [one for one in found if "other" in one]


def _tables() -> list[str]:
    rows, errors = [], {}
    for network, rate in ((network, rate) for network in NETWORKS for rate in RATES):
        found = _measured(network, rate)
        for method, parts in (("erm", [one["other"] for one in found]), ("sat", found)):
            cells = [[100 * part["clean_accuracy"] for part in parts]]
            cells += [[100 * part["levels"][level] for part in parts] for level in LEVELS]
            cells += [[100 * part["mean"] for part in parts]]
            rows.append([f"`{network}`, noise {rate}, `{method}`", str(len(parts)), *map(shown, cells)])
        errors[f"`{network}`, noise {rate}"] = [
            one["corruption_errors"] | {"mean": one["mean_corruption_error"]} for one in found
        ]
    header = [
        "accuracy (%), mean over 15 corruptions",
        "seeds",
        "clean",
        *(f"level {level}" for level in LEVELS),
        "all",
    ]
    kinds = list(next((found[0] for found in errors.values() if found), {}))
    ratios = [
        [kind.replace("_", " "), *(shown([one[kind] for one in found], digits=2) for found in errors.values())]
        for kind in kinds
    ]
    return [*table(header, rows), *table(["error of `sat` / error of `erm`", *errors], ratios)]


def write_tables() -> None:
    put_between(PAGE, "shift", _tables())


if __name__ == "__main__":
    work_through(_jobs, _run, write_tables)
