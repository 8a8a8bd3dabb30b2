"""The tables of docs/results/selective.md: error at each coverage, self-adaptive training against the baselines.

    python -m benchmarks.selective --jobs 2            all of it, about an hour on two cores
    python -m benchmarks.selective --only cifar10      one data set

The small ResNet with dropout before its last layer. Softmax response and MC-dropout are two selectors on ordinary
training (`erm`); Deep Gamblers and SelectiveNet abstain by their own outputs. SelectiveNet is trained for a coverage of
0.8 alone, where its authors train a network for each coverage. Runs are kept below runs/selective, and what is finished
is not repeated.
"""

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.grid import is_finished, program, shown, table, work_through

HOME = Path("runs/selective")
PAGE = Path("docs/results/selective.md")
FIGURES = Path("docs/results/figures")
METHODS = ("erm", "deep-gamblers", "selective-net", "selective")
DATA = {"cifar10": ("--limit", "8000", "--epochs", "15"), "fashion-mnist": ("--limit", "5000", "--epochs", "12")}
SHARED = ("--dropout", "0.3", "--batch-size", "128", "--weight-decay", "0.0005", "--test-limit", "5000")
SEEDS = range(3)
PASSES = "20"  # of MC-dropout
HEADLINES = (
    ("SAT, abstain output", "selective", "abstain"),
    ("SAT, softmax response", "selective", "softmax-response"),
    ("softmax response", "erm", "softmax-response"),
    ("MC-dropout, variance", "erm", "mc-dropout"),
    ("MC-dropout, mean", "erm", "mc-dropout-mean"),
    ("Deep Gamblers", "deep-gamblers", "abstain"),
    ("SelectiveNet", "selective-net", "selection"),
)
SELECTORS = ("abstain", "softmax-response", "entropy", "margin", "mc-dropout", "mc-dropout-mean")


def _run(job: tuple[str, str, int]) -> None:
    data, method, seed = job
    folder = HOME / data / f"{method}-{seed}"
    if not is_finished(folder):
        program(
            "train", data, "--method", method, "--seed", str(seed), *SHARED, *DATA[data], "--resume", "--out", folder
        )
    if method in ("erm", "selective") and "mc-dropout-mean" not in _selectors(folder):
        program("coverage", folder, "--passes", PASSES)
    print(folder, flush=True)


def _selectors(folder: Path) -> dict[str, Any]:
    path = folder / "coverage.json"
    return dict(json.loads(path.read_text())["selectors"]) if path.exists() else {}


def _found(data: str, method: str, selector: str) -> list[dict[str, Any]]:
    """What was measured for each seed."""
    every = (_selectors(HOME / data / f"{method}-{seed}").get(selector) for seed in SEEDS)
    return [own for own in every if own is not None]


def _table(data: str, rows: list[tuple[str, str, str]]) -> list[str]:
    coverages = ("1.00", "0.95", "0.90", "0.85", "0.80", "0.75", "0.70")
    cells = []
    for words, method, selector in rows:
        found = _found(data, method, selector)
        errors = [shown([100 * own["coverage"][key] for own in found]) for key in coverages]
        cells.append([words, *errors, shown([1000 * own["aurc"] for own in found], 0)])
    return table(["", *(f"{100 * float(key):.0f}" for key in coverages), "AURC × 1000"], cells)


def _draw(data: str) -> str:
    """The figure, once there is something to draw."""
    from selfadapt.report.figures import risk_coverage

    curves = {}
    for words, method, selector in HEADLINES:
        found = [own["curve"] for own in _found(data, method, selector)]
        if found:
            risks = zip(*(own[1] for own in found), strict=True)
            curves[words] = (found[0][0], [statistics.fmean(of_seeds) for of_seeds in risks])
    if not curves:
        return ""
    risk_coverage(curves, FIGURES / f"coverage-{data}.svg")
    return f"![error over coverage](figures/coverage-{data}.svg)"


def write_page() -> None:
    lines = [
        "# Selective classification: error at each coverage",
        "",
        "Error in percent on 5,000 test images at the coverages of the paper's Table 5; thresholds are fitted on",
        "the validation part. Mean ± standard deviation over three seeds, last epoch; made by",
        f"`python -m benchmarks.selective --jobs 2`. The small ResNet, {PASSES} passes of MC-dropout.",
        "SelectiveNet is trained for a coverage of 0.8 alone, where its authors train a network for each coverage.",
        "",
    ]
    for data, options in DATA.items():
        lines += [f"## {data}", "", f"`{' '.join((*SHARED, *options))}`", "", *_table(data, list(HEADLINES))]
        lines += ["Every selector on the one network that SAT trained:", ""]
        lines += _table(data, [(f"`{selector}`", "selective", selector) for selector in SELECTORS])
        lines += [_draw(data), ""]
    PAGE.write_text("\n".join(lines))


def _jobs(only: str) -> list[tuple[str, str, int]]:
    return [(data, method, seed) for seed in SEEDS for data in DATA if data.startswith(only) for method in METHODS]


if __name__ == "__main__":
    work_through(_jobs, _run, write_page)
