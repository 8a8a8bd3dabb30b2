"""The tables of docs/results/selective.md: error at each coverage, self-adaptive training against the baselines.

    python -m benchmarks.selective --jobs 2            all of it, some hours on two cores
    python -m benchmarks.selective --only cifar10      one data set

VGG-16 at half its width, with the dropout that it brings. Softmax response and MC-dropout are two selectors on ordinary
training (`erm`); Deep Gamblers and SelectiveNet abstain by their own outputs. Deep Gamblers chooses its reward on a
tenth of its training samples. SelectiveNet is trained for each coverage, and each network counts at its own alone. Runs
are kept below runs/selective, and what is finished is not repeated.
"""

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.grid import is_finished, program, shown, table, work_through

HOME = Path("runs/selective")
PAGE = Path("docs/results/selective.md")
FIGURES = Path("docs/results/figures")
METHODS = ("erm", "deep-gamblers", "selective")
COVERAGES = ("1.00", "0.95", "0.90", "0.85", "0.80", "0.75", "0.70")
FOR_EACH = "selective-net"  # a network for each coverage
DATA = {"cifar10": ("--limit", "8000", "--epochs", "15"), "fashion-mnist": ("--limit", "5000", "--epochs", "12")}
SHARED = (
    "--model", "vgg16", "--width", "32", "--batch-size", "128", "--weight-decay", "0.0005", "--test-limit", "5000",
)  # fmt: skip
SEEDS = range(3)
PASSES = "20"  # of MC-dropout
HEADLINES = (
    ("SAT, abstain output", "selective", "abstain"),
    ("SAT, softmax response", "selective", "softmax-response"),
    ("softmax response", "erm", "softmax-response"),
    ("MC-dropout, variance", "erm", "mc-dropout"),
    ("MC-dropout, variance of all classes", "erm", "mc-dropout-classes"),
    ("MC-dropout, mean", "erm", "mc-dropout-mean"),
    ("Deep Gamblers", "deep-gamblers", "abstain"),
    ("SelectiveNet, one network for each", FOR_EACH, "selection"),
)
SELECTORS = ("abstain", "softmax-response", "entropy", "margin", "mc-dropout", "mc-dropout-classes", "mc-dropout-mean")


def _run(job: tuple[str, str, int, str | None]) -> None:
    data, method, seed, coverage = job
    folder = _folder(data, method, seed, coverage)
    own = () if coverage is None else ("--coverage", coverage)
    if not is_finished(folder):
        program(
            "train", data, "--method", method, *own, "--seed", str(seed), *SHARED, *DATA[data], "--resume",
            "--out", folder,
        )  # fmt: skip
    if method in ("erm", "selective") and "mc-dropout-mean" not in _selectors(folder):
        program("coverage", folder, "--passes", PASSES)
    print(folder, flush=True)


def _folder(data: str, method: str, seed: int, coverage: str | None) -> Path:
    return HOME / data / "-".join(filter(None, (method, coverage, str(seed))))


def _selectors(folder: Path) -> dict[str, Any]:
    path = folder / "coverage.json"
    return dict(json.loads(path.read_text())["selectors"]) if path.exists() else {}


def _found(data: str, method: str, selector: str, coverage: str | None = None) -> list[dict[str, Any]]:
    """What was measured for each seed; of the network for one coverage, if there is one for each."""
    every = (_selectors(_folder(data, method, seed, coverage)).get(selector) for seed in SEEDS)
    return [own for own in every if own is not None]


def _table(data: str, rows: list[tuple[str, str, str]]) -> list[str]:
    cells = []
    for words, method, selector in rows:
        alone = method == FOR_EACH
        found = {key: _found(data, method, selector, key if alone else None) for key in COVERAGES}
        errors = [shown([100 * own["coverage"][key] for own in found[key]]) for key in COVERAGES]
        area = "–" if alone else shown([1000 * own["aurc"] for own in found[COVERAGES[0]]], 0)
        cells.append([words, *errors, area])
    return table(["", *(f"{100 * float(key):.0f}" for key in COVERAGES), "AURC × 1000"], cells)


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
        f"`python -m benchmarks.selective --jobs 2`. VGG-16 at half its width, {PASSES} passes of MC-dropout.",
        "SelectiveNet is trained for each coverage; Deep Gamblers chooses its reward on a tenth of its training",
        "samples.",
        "",
    ]
    for data, options in DATA.items():
        lines += [f"## {data}", "", f"`{' '.join((*SHARED, *options))}`", "", *_table(data, list(HEADLINES))]
        lines += ["Every selector on the one network that SAT trained:", ""]
        lines += _table(data, [(f"`{selector}`", "selective", selector) for selector in SELECTORS])
        lines += [_draw(data), ""]
    PAGE.write_text("\n".join(lines))


def _jobs(only: str) -> list[tuple[str, str, int, str | None]]:
    """The runs of one data set after the other, the first seed of each before the second."""
    networks = [*((method, None) for method in METHODS), *((FOR_EACH, coverage) for coverage in COVERAGES)]
    return [
        (data, method, seed, coverage)
        for seed in SEEDS
        for data in DATA
        if data.startswith(only)
        for method, coverage in networks
    ]


if __name__ == "__main__":
    work_through(_jobs, _run, write_page)
