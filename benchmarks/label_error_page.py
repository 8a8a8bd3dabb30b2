"""The report and the figure of the label error benchmark, from its rows."""

import json
import platform
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.grid import shown, table
from benchmarks.label_error_cells import CELLS, Cell

ROWS = Path("docs/results/rows/label-errors-features.jsonl")
PAGE = Path("docs/results/label-errors-features.md")
FIGURE = Path("docs/results/figures/label-errors-calibration.svg")
_LEAST_IN_BIN = 20
_SUMS = ("count", "p_wrong", "wrong")
_COLOURS = {"symmetric": "#c8553d", "next class": "#2f6690", "confusion": "#5b8e4b", "human and natural": "#8a5a9e"}
OTHERS = ("cleanlab", "SimiFeat")
ALL = (*OTHERS, "cleanlab on ours")
Row = dict[str, Any]
Column = Callable[["Measured"], str]

_METHODOLOGY = """\
**Ours** is the list that users get: the result of `find_label_errors(labels, features=features, seed=seed)` on all
samples, including duplicates. For "photos" it is the training split of the `labels.csv` that
`selfadapt train FOLDER --noise … --seed S` writes, and the baselines use the features of the same images. That file
does not contain our predictions, so there is no result for cleanlab on our predictions. **cleanlab** uses out-of-sample
predictions of scikit-learn's logistic regression (standardised features, five shuffled folds, C selected by the
held-out likelihood of the given labels) and, in a separate column, our predictions. Its column shows the best of its
four scores, selected with the true labels. **SimiFeat** is our implementation of Zhu et al. 2022
(`benchmarks/label_error_baselines.py` lists the defaults and what is omitted with fixed features). Its column shows the
best of its three lists, selected in the same way.

Label noise: `symmetric` redraws labels over all classes, `next` changes them to the next class, `asymmetric` is the
same with the option `--noise` of `selfadapt train`, and `confusion` draws errors from the confusions of a weak model
(`benchmarks/label_error_cells.py`). `human` labels are those of CIFAR-10N (aggre: a vote of three; worse: the worst of
three). `natural` are the original test labels of CIFAR10. Only the 275 labels that cleanlab's authors flagged were
reviewed, so other errors count as right, which favours lists similar to theirs. Plants and text also contain original
errors, which count as right labels. "20 per class" and similar are random subsets; in "unequal" subsets class sizes
decrease geometrically to 1/20. CIFAR10 means the first 5,000 training images, CIFAR10 test all 10,000 test images.

No cell is a clean confirmation set. Plants, digits, wine, breast cancer and CIFAR10 features were used to choose the
method, and results on breast cancer, text, human and natural cells were looked at while it was developed.

Rows of commits before 5c670f997e47 have an earlier noise model for P(wrong): symmetric noise, unless V was clearly
likelier for predictions before their temperature, and V with less shrinkage. The change was made after seeing cells of
this page, among them those with human errors. Two cells that were not measured again lose a little, computed from the
same predictions: plants next:0.4 has 0.723 rather than 0.724 and a Brier score of 0.209 rather than 0.206 (three
seeds), cifar10 next:0.4 has 0.991 rather than 0.992 and 0.029 rather than 0.027 (one seed).

The second term of P(wrong), for errors between classes that predictions confuse, was found on breast cancer and on 50
images per class of CIFAR10. Its exponent (1/4 rather than 0, 1/10, 0.4 or 1/2) was selected on sets that are not on
this page: other images of CIFAR10, Fashion-MNIST and MNIST, iris, and mixtures of Gaussians, one to three seeds each.
Cells of this page were in view at the time. Rows of commits before 42d885424352 have the earlier second term and other
folds.

`train` and `find_label_errors` compute the same list from the same features, duplicates and seed. Their lists of photos
differ because `train` finds duplicates by pixels, and `find_label_errors` by features: a few samples then change their
fold. Where errors are systematic and classes are small, the estimate of V depends on the folds, so another seed changes
the list as much, by a few hundredths of average precision. For the list of `train`, pass the groups of its
`duplicates.csv`: those of the same file or image as `duplicates`, and all of them as `groups`."""

_LIMITS = """\
P(wrong) cannot be calibrated everywhere. Errors drawn from the confusions of a model look like overlapping classes:
the labels are equally likely under "a few errors and a confident model" and under "no errors and an uncertain model".
The assumption about such errors (at most half of the disagreement, and at most one label in 30) is a guess. In the
`confusion` cells the expected number is therefore about the same for any number of injected errors: 69 on plants for
0, 23, 70, 116 and 232. Human errors are similar, and their number is underestimated. Plants, text and CIFAR10's test
set contain original errors that count as right here, so where few errors were injected a Brier score below that of the
base rate cannot be reached. Only a review of some labels can settle this: `selfadapt review`, queue Measure. In the
`next` and `asymmetric` cells of plants, V is estimated from some 80 samples of a class, and P(wrong) ignores that V is
uncertain."""

_SINGLE = """\
The table above compares with the best of eleven lists in each cell, which nobody can choose without the true labels.
This one compares with each list in all cells. The lists that win a cell lose others: cleanlab's margin on our
predictions ranks the 10 digits better under `confusion`, but the 27 classes of plants far worse. It trusts predictions
that are sure of one other class; ours, like self-confidence, also trusts those that are torn between several."""

_CONTRADICTIONS = """\
Some duplicates have different labels before any error is injected. Among the 2,319 training images of plants our search
by features finds twelve such pairs: three are byte-identical files, nine have similar features and were not inspected.
The texts contain 98 such samples, found in the same way. If a pair is a true duplicate, one of its labels is already
wrong, yet the table above counts both as right. Our list uses duplicates as evidence, to the extent that the error rate
explains their conflicts; the baselines ignore them. This table evaluates all lists without those samples. It does not
replace the table above, which shows the lists that users get."""


@dataclass(frozen=True)
class Measured:
    """A cell and its rows."""

    cell: Cell
    rows: list[Row]

    @property
    def has_errors(self) -> bool:
        return bool(self.rows[0]["wrong"])

    def values(self, key: str) -> list[float]:
        return [row[key] for row in self.rows if row[key] is not None]

    def best(self, *families: str) -> str | None:
        """The list of these families of baselines with the largest mean average precision."""
        names = [name for name in self.rows[0]["others"] if name.split(":")[0] in families]
        return max(names, key=lambda name: statistics.fmean(self.other(name)), default=None)

    def other(self, name: str) -> list[float]:
        return [row["others"][name] for row in self.rows]

    def gains_over(self, name: str) -> list[float]:
        """Ours minus this list, for each seed."""
        return [result - other for result, other in zip(self.values("ours"), self.other(name), strict=True)]

    def gains(self, *families: str) -> list[float]:
        """Ours minus the best of these baselines, for each seed."""
        best = self.best(*families)
        assert best is not None
        return self.gains_over(best)

    def verdict(self, *families: str) -> str:
        return _verdict(self.gains(*families))


def _verdict(gains: list[float]) -> str:
    """Whether the mean difference exceeds its standard deviation over seeds; with one seed, its sign."""
    mean, spread = statistics.fmean(gains), statistics.stdev(gains) if len(gains) > 1 else 0.0
    return "above" if mean > spread else "below" if mean < -spread else "level"


def read_rows() -> list[Row]:
    if not ROWS.exists():
        return []
    return [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]


def write_row(row: Row) -> None:
    """Add a row. It replaces an earlier one of the same cell and seed."""
    rows = [other for other in read_rows() if (other["cell"], other["seed"]) != (row["cell"], row["seed"])]
    ROWS.write_text("".join(json.dumps(each) + "\n" for each in [*rows, row]), encoding="utf-8")


def write_page() -> None:
    """Write the report and the figure."""
    rows = read_rows()
    cells = [Measured(cell, result) for cell in CELLS if (result := [row for row in rows if row["cell"] == cell.name])]
    if not cells:
        return
    draw_reliability(cells)
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "scikit-learn", "cleanlab"))
    wrong = [result for result in cells if result.has_errors]
    text = [
        "# The list of label errors on features, against cleanlab and SimiFeat",
        "",
        *_summary(wrong),
        "",
        "Made by `python -m benchmarks.label_errors_features --features FOLDER --photos FOLDER` on "
        f"{date.today().isoformat()}: Python {platform.python_version()}, {versions}, one thread.",
        "",
        *_average_precision(wrong),
        *_each_baseline(wrong),
        *_contradictions(wrong),
        *_likely_errors(cells),
        *_calibration([result for result in cells if all(row["calibration"] for row in result.rows)]),
        *_time([result for result in cells if result.values("seconds")]),
        "## How it was measured",
        "",
        _METHODOLOGY,
        "",
        *_commits(cells),
        *_not_run(cells),
    ]
    PAGE.write_text("\n".join(text), encoding="utf-8")


def _summary(cells: list[Measured]) -> list[str]:
    """The summary, losses first."""
    lines = []
    for description, families in (
        ("the best baseline of all", ALL),
        ("the best baseline with its own predictions", OTHERS),
    ):
        verdicts = [result.verdict(*families) for result in cells]
        losses = [
            f"- {result.cell.name}: {shown(result.values('ours'), 3)} against {shown(result.other(best), 3)} ({best})"
            for result, verdict in zip(cells, verdicts, strict=True)
            if verdict == "below" and (best := result.best(*families))
        ]
        counts = ", ".join(f"{verdict} in {verdicts.count(verdict)}" for verdict in ("below", "level", "above"))
        lines += [f"Against {description}, the list is {counts} of {len(cells)} cells with errors. Below:", ""]
        lines += [*(losses or ["- nowhere"]), ""]
    most = max(sum(_verdict(each) == "below" for each in gains) for gains in _gains_over_each(cells).values())
    return [
        "Losses come first: average precision, mean ± standard deviation over seeds. *Below* and *above* mean by more "
        "than the standard deviation over seeds of the paired difference (with one seed, any difference). The best "
        "baseline is selected in each cell with the true labels, among eleven lists; four of them are cleanlab's "
        "scores on *our* predictions.",
        "",
        *lines,
        f"Against each of the eleven baselines by itself, the list is below in at most {most} of these cells.",
        "",
        *_misses(cells),
    ]


def _misses(cells: list[Measured]) -> list[str]:
    """The cells where P(wrong) is miscalibrated."""
    judged = [result for result in cells if all(row["calibration"] for row in result.rows)]
    limits: dict[str, Callable[[Row], bool]] = {
        "Brier score above that of the base rate": lambda row: (
            row["calibration"]["brier"] >= row["calibration"]["brier of the base rate"]
        ),
        "calibration error above 0.05 with 500 samples or more": lambda row: (
            row["samples"] >= 500 and row["calibration"]["error"] > 0.05
        ),
        "calibration error above 0.1 at the top of the list": lambda row: row["calibration"]["error at the top"] > 0.1,
    }
    lines = [f"P(wrong) is miscalibrated in some of {len(judged)} cells, for at least one seed:", ""]
    for description, is_off in limits.items():
        names = [result.cell.name for result in judged if any(map(is_off, result.rows))]
        lines.append(f"- {description}: {len(names)}" + (f" ({', '.join(names)})" if names else ""))
    return lines


def _section(title: str, description: str, cells: list[Measured], columns: dict[str, Column]) -> list[str]:
    lines = [[result.cell.name, *(column(result) for column in columns.values())] for result in cells]
    return [f"## {title}", "", description, "", *table(["cell", *columns], lines)]


def _family(name: str) -> Column:
    def column(result: Measured) -> str:
        best = result.best(name)
        return shown(result.other(best), 3) if best else "–"

    return column


_COMPARED: dict[str, Column] = {
    "ours": lambda result: shown(result.values("ours"), 3),
    "cleanlab": _family("cleanlab"),
    "SimiFeat": _family("SimiFeat"),
    "cleanlab on our predictions": _family("cleanlab on ours"),
    "best of all": lambda result: result.best(*ALL) or "",
    "ours minus the best of all": lambda result: f"{shown(result.gains(*ALL), 3)} {result.verdict(*ALL)}",
    "minus cleanlab and SimiFeat": lambda result: f"{shown(result.gains(*OTHERS), 3)} {result.verdict(*OTHERS)}",
}


def _average_precision(cells: list[Measured]) -> list[str]:
    columns: dict[str, Column] = {
        "wrong": lambda result: shown([row["wrong"] / row["samples"] for row in result.rows], 3),
        **_COMPARED,
        "seeds": lambda result: str(len(result.rows)),
    }
    description = "1 means that every wrong label is ranked before every right one. The differences are paired by seed."
    return _section("Average precision", description, cells, columns)


def _each_baseline(cells: list[Measured]) -> list[str]:
    """Our list against each baseline by itself."""
    lines = []
    for name, gains in _gains_over_each(cells).items():
        verdicts = [_verdict(each) for each in gains]
        counts = [str(verdicts.count(verdict)) for verdict in ("below", "level", "above")]
        lines.append([name, *counts, f"{statistics.fmean(statistics.fmean(each) for each in gains):.3f}"])
    header = ["baseline", "ours is below", "level", "above", "mean difference"]
    return ["## Against each baseline", "", _SINGLE, "", *table(header, lines)]


def _gains_over_each(cells: list[Measured]) -> dict[str, list[list[float]]]:
    """Ours minus each baseline, for each cell that has it and each seed."""
    names = dict.fromkeys(name for result in cells for name in result.rows[0]["others"])
    return {
        name: [result.gains_over(name) for result in cells if all(name in row["others"] for row in result.rows)]
        for name in names
    }


def _contradictions(cells: list[Measured]) -> list[str]:
    """The same without duplicates that have different labels in the original data."""
    settled = [
        Measured(result.cell, [{**row, **row["without contradicted"]} for row in result.rows])
        for result in cells
        if any(result.values("contradicted"))
    ]
    columns: dict[str, Column] = {"left out": lambda result: shown(result.values("contradicted"), 0), **_COMPARED}
    return _section("Contradictions in the original data", _CONTRADICTIONS, settled, columns) if settled else []


def _likely_errors(cells: list[Measured]) -> list[str]:
    def inside(side: str, key: str, digits: int) -> Column:
        return lambda result: shown([row[side][key] for row in result.rows if row[side][key] is not None], digits)

    columns: dict[str, Column] = {
        "samples": lambda result: str(result.rows[0]["samples"]),
        "wrong": lambda result: shown([row["wrong"] for row in result.rows], 0),
        "likely errors": inside("found", "count", 0),
        "precision": inside("found", "precision", 2),
        "recall": inside("found", "recall", 2),
        "cleanlab's issues": inside("cleanlab found", "count", 0),
        "its precision": inside("cleanlab found", "precision", 2),
        "its recall": inside("cleanlab found", "recall", 2),
        "false, of all labels": lambda result: shown([100 * share for share in _false_shares(result)], 1) + " %",
    }
    description = (
        "`is_error` (`suspect` in labels.csv) against the injected errors, and the issues of cleanlab's filter."
    )
    return _section("The likely errors", description, cells, columns)


def _false_shares(result: Measured) -> Iterator[float]:
    for row in result.rows:
        yield row["found"]["count"] * (1 - (row["found"]["precision"] or 0.0)) / row["samples"]


def _calibration(cells: list[Measured]) -> list[str]:
    def inside(key: str, digits: int = 3) -> Column:
        return lambda result: shown([row["calibration"][key] for row in result.rows], digits)

    columns: dict[str, Column] = {
        "Brier score": inside("brier", 4),
        "of the base rate": inside("brier of the base rate", 4),
        "calibration error": inside("error"),
        "at the top": lambda result: inside("error at the top")(result) if result.has_errors else "–",
        "expected wrong": inside("expected wrong", 0),
        "wrong": lambda result: shown([row["wrong"] for row in result.rows], 0),
    }
    description = (
        "P(wrong) against the injected errors. The base rate predicts the true share of errors for every label. The "
        "expected calibration error is computed over ten bins of equal mass, and at the top over the first rows of the "
        "list, twice as many as there are errors, in at most ten bins of at least 20 rows.\n\n"
        f"{_LIMITS}\n\n"
        "![Reliability of P(wrong)](figures/label-errors-calibration.svg)"
    )
    return _section("Calibration", description, cells, columns)


def _time(cells: list[Measured]) -> list[str]:
    def ratios(result: Measured) -> list[float]:
        return [row["seconds"] / row["scikit-learn and cleanlab seconds"] for row in result.rows]

    columns: dict[str, Column] = {
        "samples × features": lambda result: f"{result.rows[0]['samples']} × {result.rows[0]['features']}",
        "ours / scikit-learn and cleanlab": lambda result: f"{statistics.median(ratios(result)):.2f}",
        "seconds, ours": lambda result: f"{statistics.median(result.values('seconds')):.1f}",
    }
    slower = sum(statistics.median(ratios(result)) > 1 for result in cells)
    description = (
        "CPU seconds with one thread, sequentially in one process; medians over seeds. Ours takes longer in "
        f"{slower} of {len(cells)} cells. The baseline selects C among five values and computes all four scores and "
        "the issues of the filter."
    )
    return _section("CPU time", description, cells, columns)


def _commits(cells: list[Measured]) -> list[str]:
    """The cells that each commit measured."""
    by_commit: dict[str, dict[str, list[int]]] = {}
    for result in cells:
        for row in result.rows:
            by_commit.setdefault(row["commit"].rstrip("+"), {}).setdefault(result.cell.name, []).append(row["seed"])
    lines = []
    for commit, seeds_of in by_commit.items():
        names = [f"{name} ({', '.join(map(str, sorted(seeds)))})" for name, seeds in seeds_of.items()]
        lines.append(f"- {commit}: {', '.join(names)}")
    return [
        "Our list was measured with these commits (seeds in brackets). With `--again` a row keeps its earlier "
        "baselines, whose folds differ, and its earlier times.",
        "",
        *lines,
        "",
    ]


def _not_run(cells: list[Measured]) -> list[str]:
    measured = {result.cell.name: {row["seed"] for row in result.rows} for result in cells}
    lacking = [
        cell.name + (f" ({len(measured[cell.name])} of {len(cell.seeds)} seeds run)" if cell.name in measured else "")
        for cell in CELLS
        if set(cell.seeds) - measured.get(cell.name, set())
    ]
    return [f"Not run: {', '.join(lacking)}." if lacking else "All cells were run.", ""]


def _kind(cell: Cell) -> str | None:
    kinds = {
        "symmetric": "symmetric",
        "next": "next class",
        "asymmetric": "next class",
        "confusion": "confusion",
        "human": "human and natural",
        "natural": "human and natural",
    }
    return kinds.get(cell.noise.split(":")[0])


def _reliability(bins: list[dict[str, list[float]]]) -> list[tuple[float, float]]:
    """Mean P(wrong) and the share of wrong labels in each bin with enough samples."""
    sums = [[sum(values) for values in zip(*(result[key] for result in bins), strict=True)] for key in _SUMS]
    return [(p / count, wrong / count) for count, p, wrong in zip(*sums, strict=True) if count >= _LEAST_IN_BIN]


def draw_reliability(cells: list[Measured]) -> None:
    """Plot the share of wrong labels against P(wrong) for each type of noise, over all cells and seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context({"svg.hashsalt": "calibration", "svg.fonttype": "none"}):
        figure, axes = pyplot.subplots(figsize=(5.2, 4.6))
        axes.plot([0, 1], [0, 1], color="#999999", linewidth=0.8, linestyle="--", label="calibrated")
        for kind, colour in _COLOURS.items():
            rows = [row for result in cells if _kind(result.cell) == kind for row in result.rows if row["calibration"]]
            points = _reliability([row["calibration"]["bins"] for row in rows])
            if points:
                axes.plot(*zip(*points, strict=True), color=colour, marker="o", markersize=4, label=kind)
        axes.set(xlabel="P(wrong)", ylabel="share that is wrong", xlim=(0, 1), ylim=(0, 1))
        axes.legend(frameon=False)
        figure.tight_layout()
        FIGURE.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(FIGURE, metadata={"Date": None})
        pyplot.close(figure)
