"""The tables of docs/results/noisy-labels.md: every method, and every start, on real data with noisy labels.

    python -m benchmarks.noisy_labels --jobs 2              all of it, about three hours on two cores
    python -m benchmarks.noisy_labels --only digits         the cells whose name starts like this
    python -m benchmarks.noisy_labels --only :sce,elr       only the rows of these methods

A cell is one data set with one kind of noise. Each is a folder below runs/noisy-labels made by `selfadapt compare`, in
a process with one thread. Finished runs are not repeated, so the command may be interrupted and run again. `sat` finds
its start; `sat-paper` is Algorithm 2, trained with each of five fixed starts. The results of a run stay in the ledger
with their date, even if its folder is deleted.
"""

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.grid import program, shown, table, work_through

HOME = Path("runs/noisy-labels")
PAGE = Path("docs/results/noisy-labels.md")
LEDGER = Path("benchmarks/results/noisy-labels.json")
EVERY = (
    "erm", "early-stopping", "label-smoothing", "mixup", "mae", "forward", "gce", "gce-truncated", "sce",
    "bootstrap-soft", "bootstrap-hard", "mentor-net", "sop", "elr", "dac", "joint-optimization", "aum", "self",
    "co-teaching", "elr-plus", "divide-mix", "sat-no-average", "sat-no-weights", "sat", "sat-sce", "sat-posterior",
)  # fmt: skip
_EARLIER = "2026-11-16"  # of entries without a date
_AGREEMENTS = ("train_accuracy_given", "validation_accuracy_given")
Ledger = dict[str, dict[str, Any]]  # by CELL/PART/METHOD-SEED
FIXED = "sat-paper"
ASYMMETRIC = ("elr", ("--target-momentum", "0.9", "--strength", "1"))  # its authors' settings for asymmetric noise
_OTHER_SETTINGS = "asymmetric"
NAMES = {  # of rows with a longer name than the method
    "co-teaching": "`co-teaching`, given the noise rate",
    _OTHER_SETTINGS: "`elr`, with its settings for asymmetric noise",
}
FEW = ("erm", "early-stopping", "gce", "elr", "sat", "sat-sce")


@dataclass(frozen=True)
class Cell:
    data: str
    noise: str
    methods: tuple[str, ...]
    starts: tuple[int, ...]  # E_s of `sat-paper`, to compare with the one found
    seeds: int = 3
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.data}-{self.noise.replace(':', '-')}"

    @property
    def asymmetric(self) -> bool:
        return self.noise.startswith("asymmetric")

    def commands(self, only: tuple[str, ...] = ()) -> Iterator[tuple[Path, list[str]]]:
        """The folder and the arguments of each comparison of this cell; with `only`, of these methods."""
        shared = [self.data, "--noise", self.noise, "--seeds", str(self.seeds), *self.options]
        folder = HOME / self.name
        chosen = [method for method in self.methods if not only or method in only]
        if chosen:
            yield folder / "methods", [*shared, "--methods", ",".join(chosen)]
        method, own = ASYMMETRIC
        if method in chosen and self.asymmetric:
            yield folder / "asymmetric", [*shared, "--methods", method, *own]
        for start in () if only and FIXED not in only else self.starts:
            yield folder / f"start-{start}", [*shared, "--methods", FIXED, "--start-epoch", str(start)]


_FASHION = ("--limit", "5000", "--model", "mlp", "--augment", "none")
_CIFAR = ("--limit", "5000", "--augment", "none", "--batch-size", "64", "--epochs", "30")
CELLS = (
    *(
        Cell("fashion-mnist", noise, EVERY, (2, 5, 10, 20, 40), options=_FASHION)
        for noise in ("symmetric:0.4", "symmetric:0.8", "asymmetric:0.4", "instance:0.4")
    ),
    *(
        Cell("cifar10", noise, FEW, (3, 6, 10, 15, 22), seeds=1, options=_CIFAR)
        for noise in ("symmetric:0.4", "asymmetric:0.4", "instance:0.4")
    ),
    *(
        Cell("digits", noise, EVERY, (5, 10, 20, 30, 45))
        for noise in (
            "symmetric:0.4",
            "asymmetric:0.4",
            "symmetric:0.2",
            "symmetric:0.6",
            "symmetric:0.8",
            "instance:0.4",
        )
    ),
)


def _compare(job: tuple[Path, list[str]]) -> None:
    folder, arguments = job
    folder.parent.mkdir(parents=True, exist_ok=True)
    program("compare", *arguments, "--out", folder)
    print(folder, flush=True)


def _remember() -> Ledger:
    """The results of all finished runs, including those whose folders were deleted."""
    ledger: Ledger = json.loads(LEDGER.read_text()) if LEDGER.exists() else {}
    for path in sorted(HOME.glob("*/*/*/run.json")):
        content = json.loads(path.read_text())
        if "result" in content:
            last = json.loads((path.parent / "metrics.jsonl").read_text().splitlines()[-1])
            ledger[str(path.parent.relative_to(HOME))] = {
                "test_accuracy": content["result"]["test_accuracy"],
                "start_epoch": content["result"]["start_epoch"],
                "right_labels": 1 - content["noise"]["actual"],
                "average_precision": content["result"]["audit"].get("average_precision"),
                "made": f"{date.fromtimestamp(path.stat().st_mtime).isoformat()}, commit {content['commit']}",
                **{key: last[key] for key in _AGREEMENTS},
            }
    LEDGER.write_text(json.dumps(ledger, indent=0, sort_keys=True) + "\n")
    return ledger


def _of(ledger: Ledger, cell: Cell, part: str, method: str, key: str) -> list[float]:
    """A metric of a method's runs, in the order of their seeds."""
    names = (f"{cell.name}/{part}/{method}-{seed}" for seed in range(cell.seeds))
    return [ledger[name][key] for name in names if name in ledger and key in ledger[name]]


def _accuracies(ledger: Ledger, cell: Cell, part: str, method: str) -> list[float]:
    return [100 * value for value in _of(ledger, cell, part, method, "test_accuracy")]


def _by_start(ledger: Ledger, cell: Cell) -> list[list[float]]:
    """The accuracies of `sat-paper` with each of its starts."""
    return [_accuracies(ledger, cell, f"start-{start}", FIXED) for start in cell.starts]


def _methods_table(ledger: Ledger, cells: list[Cell]) -> list[str]:
    columns = [{m: _accuracies(ledger, cell, "methods", m) for m in cell.methods} for cell in cells]
    method, _ = ASYMMETRIC
    own_rows = {method: (_OTHER_SETTINGS,)} if any(cell.asymmetric for cell in cells) else {}
    for column, cell in zip(columns, cells, strict=True):
        column[_OTHER_SETTINGS] = _accuracies(ledger, cell, "asymmetric", method)
    bests = [
        max((statistics.fmean(own) for own in column.values() if len(own) == cell.seeds), default=0)
        for column, cell in zip(columns, cells, strict=True)
    ]
    rows = []
    for method in cells[0].methods:
        if method == "sat":
            best_starts = [
                max(filter(None, _by_start(ledger, cell)), key=statistics.fmean, default=[]) for cell in cells
            ]
            rows.append([f"`{FIXED}`, best of {len(cells[0].starts)} E_s", *map(shown, best_starts)])
        for name in (method, *own_rows.get(method, ())):
            if not any(column.get(name) for column in columns):
                continue
            row = [NAMES.get(name, f"`{name}`")]
            for column, best, cell in zip(columns, bests, cells, strict=True):
                own = column.get(name, [])
                is_best = len(own) == cell.seeds and statistics.fmean(own) >= best - 1e-9
                row.append(f"**{shown(own)}**" if is_best else shown(own))
            rows.append(row)
    return table(["method", *(cell.noise.replace(":", " ") for cell in cells)], rows)


def _precision_table(ledger: Ledger, cells: list[Cell]) -> list[str]:
    """The average precision of the label-error list of each method, where it was measured."""
    of_cell = {
        cell: {name: _of(ledger, cell, "methods", name, "average_precision") for name in cell.methods} for cell in cells
    }
    rows = [
        [f"`{name}`", *(shown(of_cell[cell][name], 3) for cell in cells)]
        for name in cells[0].methods
        if any(of_cell[cell][name] for cell in cells)
    ]
    header = ["method", *(cell.noise.replace(":", " ") for cell in cells)]
    intro = "The list of label errors, by average precision:"
    return [intro, "", *table(header, rows)] if rows else []


def _memory_table(ledger: Ledger, cells: list[Cell]) -> list[str]:
    """How much `erm` memorises: it agrees far more with training labels than with held-out labels."""
    rows = []
    for cell in cells:
        shares = [_of(ledger, cell, "methods", "erm", key) for key in ("right_labels", *_AGREEMENTS)]
        if shares[0]:
            rows.append([_name(cell), *(f"{100 * statistics.fmean(share):.1f}" for share in shares)])
    return table(["cell", "correct labels", "agreement, training", "agreement, validation"], rows)


def _name(cell: Cell) -> str:
    return f"{cell.data} {cell.noise.replace(':', ' ')}"


def _starts_table(ledger: Ledger, cells: list[Cell]) -> list[str]:
    rows = []
    for cell in cells:
        fixed = _by_start(ledger, cell)
        found = _accuracies(ledger, cell, "methods", "sat")
        means = [statistics.fmean(own) for own in fixed if own]
        rows.append(
            [
                _name(cell),
                shown(_accuracies(ledger, cell, "methods", "erm")),
                " / ".join(f"{statistics.fmean(own):.1f}" if own else "–" for own in fixed),
                shown(found),
                ", ".join(map(str, _of(ledger, cell, "methods", "sat", "start_epoch"))) or "–",
                f"{statistics.fmean(found) - max(means):+.1f}" if found and means else "–",
            ]
        )
    starts = " / ".join(map(str, cells[0].starts))
    return table(
        ["cell", "`erm`", f"`{FIXED}`, E_s = {starts}", "`sat`", "E_s it found", f"`sat` − best `{FIXED}`"], rows
    )


def _days(ledger: Ledger) -> list[str]:
    """Rows that were made later than the rest."""
    seeds = {cell.name: cell.seeds for cell in CELLS}
    made: dict[str, dict[str, dict[str, int]]] = {}  # how many seeds, by day, cell and row
    rows_of: dict[str, set[str]] = {}  # of each cell
    for name, entry in sorted(ledger.items()):
        cell, part, run = name.split("/")
        row = run.rsplit("-", 1)[0] + (" (asymmetric)" if part == "asymmetric" else "")
        own = made.setdefault(entry.get("made", _EARLIER), {}).setdefault(cell, {})
        own[row] = own.get(row, 0) + (1 if row != FIXED else 0)
        rows_of.setdefault(cell, set()).add(row)
    first, *later = sorted(made)
    lines = [
        f"All runs were made on {first}, with the program of that day, except for the runs below. Results of an",
        "unchanged method may still differ between days: with seed 0 of digits asymmetric 0.4, `erm` gave 69.3 on the",
        "first day and 66.3 on 2026-11-17, `sat` 89.7 and 90.7.",
        "",
    ]
    for day in later:
        cells_of: dict[str, list[str]] = {}
        for cell, rows in made[day].items():
            words = ", ".join(
                f"`{row}`" + (f" ({count} of {seeds[cell]} seeds)" if 0 < count < seeds[cell] else "")
                for row, count in rows.items()
            )
            cells_of.setdefault("every row" if set(rows) == rows_of[cell] else words, []).append(cell)
        lines += [f"- {day}: {words} of {', '.join(cells)}" for words, cells in cells_of.items()]
    return [*lines, ""] if later else []


def _not_run(ledger: Ledger) -> list[str]:
    """The methods of these tables that have no row yet."""
    found = {name.split("/")[2].rsplit("-", 1)[0] for name in ledger}
    missing = [f"`{method}`" for method in EVERY if method not in found]
    return [f"Not run yet: {', '.join(missing)}.", ""] if missing else []


def write_page() -> None:
    ledger = _remember()
    lines = [
        "# Noisy labels: the methods, and when to start",
        "",
        "Test accuracy in percent of the last epoch (`early-stopping`: of the epoch that was best on noisy validation",
        "labels), mean ± standard deviation over seeds, the best row with all seeds in bold. A number without ± is one",
        "seed, a dash a run that was not made. Written by `python -m benchmarks.noisy_labels --jobs 2`; run it again",
        "to resume.",
        "",
        *_not_run(ledger),
        "`sat` finds E_s during training (`--start-epoch auto`), which is our contribution. `sat-paper` is Algorithm 2",
        "of the paper with a fixed E_s; its row has, for each cell, the E_s that was best on test data. No user could",
        "select it that way, so the row is never bold. `co-teaching` is given the true noise rate, which no other",
        "method knows. `elr` has its authors' settings for symmetric noise, and in a separate row those for asymmetric",
        "noise. Lists of label errors are those of `selfadapt audit`: of `aum` by its margins, of a method without",
        "targets by the predictions of its last network, as the loss would rank them.",
        "",
        *_days(ledger),
    ]
    for data, words in (
        ("digits", "1,397 training images of 8×8, the small ResNet, 60 epochs, crops by one pixel, 300 test images"),
        (
            "fashion-mnist",
            "5,000 training images, a perceptron (256-256), 60 epochs, no augmentation, 10,000 test images",
        ),
        (
            "cifar10",
            "5,000 training images, the small ResNet, 30 epochs, no augmentation, 10,000 test images",
        ),
    ):
        cells = [cell for cell in CELLS if cell.data == data]
        lines += [f"## {data}", "", f"{words}; {cells[0].seeds} seed{'s' if cells[0].seeds > 1 else ''}.", ""]
        lines += _methods_table(ledger, cells)
        lines += _precision_table(ledger, cells)
        lines += [
            "How much `erm` memorises, measured by agreement with the given labels:",
            "",
            *_memory_table(ledger, cells),
        ]
        lines += ["The start found by `sat`, against fixed starts:", "", *_starts_table(ledger, cells)]
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text("\n".join(lines))


def _jobs(only: str) -> list[tuple[Path, list[str]]]:
    begins, _, methods = only.partition(":")
    rows = tuple(filter(None, methods.split(",")))
    return [job for cell in CELLS if cell.name.startswith(begins) for job in cell.commands(rows)]


if __name__ == "__main__":
    work_through(_jobs, _compare, write_page)
