"""The page and the figure of the benchmark of label errors, from its rows."""

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

_HOW = """\
**Ours** is what users get: the result of `find_label_errors(labels, features=features, seed=seed)` with everything
left in, duplicates too. For "photos" it is the `labels.csv` that `selfadapt train FOLDER --noise … --seed S` writes,
of the training split, and the others get the features of the same images; that file does not hold our predictions, so
cleanlab on our predictions is missing there. **cleanlab** is given the out-of-sample predictions of scikit-learn's
logistic regression (standardised features, five shuffled folds, C chosen by the held-out
likelihood of the given labels), and in a column of its own the predictions that our list is made from. Its column shows
the best of its four scores, which takes the truth to know. **SimiFeat** is our implementation of Zhu et al. 2022
(`benchmarks/label_error_baselines.py` lists the defaults and what fixed features leave out); the best of its three
lists is shown.

Errors: `symmetric` labels are redrawn over all classes, `next` ones become the next class, `asymmetric` is the same by
the program's own option, `confusion` ones are drawn from what a weak model confuses
(`benchmarks/label_error_cells.py`). `human` labels are CIFAR-10N's (aggre: a vote of three; worse: the worst of three).
`natural` are CIFAR10's own test labels: only the 275 that cleanlab's authors suspected were reviewed, so errors that
they did not suspect count as right, which favours lists that resemble theirs. Plants and text have errors of their own,
which count as right labels too. "20 per class" and the like are random subsets; "unequal" means class sizes that fall
geometrically to 1/20. CIFAR10 stands for the first 5,000 training images, CIFAR10 test for all 10,000.

Plants, digits, wine, breast cancer and CIFAR10 features had a part in choosing the method, and so had human labels:
that V serves for the verdict where a small gain speaks for it was tried on all of these, and changed `human:aggre`
alone (average precision 0.726 before). Text and natural errors had no part, though the latter's images are CIFAR10's.

Each row of the data behind this page names a commit. Wine, breast cancer, digits, most subsets of CIFAR10 and photos
were measured with the last program. For plants (confusion up to 0.05, next:0.4, symmetric:0.2, none) and CIFAR10
(confusion:0.03, none, human) it made only our lists again, for one or two seeds, on a busier machine; average precision
and number of likely errors came out the same, but for `human:aggre`. There our seconds, and for `human:aggre` all that
is ours, are the new ones; the baselines are those of before. The remaining cells of plants, text, CIFAR10's test set
and seed 0 of "200 per class" were not measured again."""

_UNKNOWABLE = """\
P(wrong) cannot be right everywhere. Errors drawn from what a model confuses look like classes that overlap: the same
labels are as likely under "a few errors and a sharp model" as under "no error and a model that hesitates". What is
assumed of them (at most half of what disagrees, and at most one label in 30) is a guess, so in the cells `confusion`
the expected number is about the same whatever was put in: 69 on plants for 0, 23, 70, 116 and 232. Human labels are
wrong in the same way, and their number is underestimated. Plants, text and CIFAR10's test set have errors of their own
that count as right here, so a Brier score below the base rate's is not to be had where few were put in. Only looking at
some labels settles it: `selfadapt review`, queue Measure."""

_CONTRADICTIONS = """\
Some duplicates stand in two classes before any error is put in. Among the 2,319 training images of plants our search
by features finds twelve such pairs: three are the same file byte for byte, nine are alike by features and were not
checked by eye. The texts hold 98 such samples, found in the same way. Where a pair is a true duplicate one of its
labels is wrong already, yet the table above counts both as right. Our list takes duplicates as evidence, as far as the
error rate explains their conflicts; the other lists do not look at them. Here the same lists are measured with those
samples left out of the count, for all alike. This table does not replace the one above: users get the list as it is
there."""


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
        """The list of these families of baselines with the largest mean."""
        names = [name for name in self.rows[0]["others"] if name.split(":")[0] in families]
        return max(names, key=lambda name: statistics.fmean(self.other(name)), default=None)

    def other(self, name: str) -> list[float]:
        return [row["others"][name] for row in self.rows]

    def gains(self, *families: str) -> list[float]:
        """Ours less the best of these baselines, by seed."""
        best = self.best(*families)
        assert best is not None
        return [own - other for own, other in zip(self.values("ours"), self.other(best), strict=True)]

    def verdict(self, *families: str) -> str:
        """Whether the difference is larger than its spread over seeds; of one seed only its sign is known."""
        gains = self.gains(*families)
        mean, spread = statistics.fmean(gains), statistics.stdev(gains) if len(gains) > 1 else 0.0
        return "above" if mean > spread else "below" if mean < -spread else "level"


def read_rows() -> list[Row]:
    if not ROWS.exists():
        return []
    return [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]


def write_page() -> None:
    """Make the page and the figure."""
    rows = read_rows()
    cells = [Measured(cell, own) for cell in CELLS if (own := [row for row in rows if row["cell"] == cell.name])]
    if not cells:
        return
    draw_reliability(cells)
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "scikit-learn", "cleanlab"))
    wrong = [own for own in cells if own.has_errors]
    text = [
        "# The list of label errors on features, against cleanlab and SimiFeat",
        "",
        *_summary(wrong),
        "",
        "Made by `python -m benchmarks.label_errors_features --features FOLDER --photos FOLDER` on "
        f"{date.today().isoformat()}: Python {platform.python_version()}, {versions}, one thread.",
        "",
        *_average_precision(wrong),
        *_contradictions(wrong),
        *_likely_errors(cells),
        *_calibration([own for own in cells if all(row["calibration"] for row in own.rows)]),
        *_time([own for own in cells if own.values("seconds")]),
        "## How it was measured",
        "",
        _HOW,
        "",
        *_left_out(cells),
    ]
    PAGE.write_text("\n".join(text), encoding="utf-8")


def _summary(cells: list[Measured]) -> list[str]:
    """Where it loses, first."""
    lines = []
    for words, families in (("the best baseline of all", ALL), ("the best that makes its own predictions", OTHERS)):
        verdicts = [own.verdict(*families) for own in cells]
        lost = [
            f"- {own.cell.name}: {shown(own.values('ours'), 3)} against {shown(own.other(best), 3)} ({best})"
            for own, verdict in zip(cells, verdicts, strict=True)
            if verdict == "below" and (best := own.best(*families))
        ]
        counts = ", ".join(f"{verdict} in {verdicts.count(verdict)}" for verdict in ("below", "level", "above"))
        lines += [f"Against {words}, the list is {counts} of {len(cells)} cells with errors. Below:", ""]
        lines += [*(lost or ["- nowhere"]), ""]
    return [
        "Where the list loses comes first: average precision, mean ± standard deviation over seeds. *Below* and "
        "*above* mean by more than the spread over seeds of the paired difference (with one seed, any difference). The "
        "best baseline is chosen in each cell by hindsight, among eleven lists; four of them are cleanlab's scores on "
        "*our* predictions.",
        "",
        *lines,
        *_misses(cells),
    ]


def _misses(cells: list[Measured]) -> list[str]:
    """Where P(wrong) is off."""
    judged = [own for own in cells if all(row["calibration"] for row in own.rows)]
    limits: dict[str, Callable[[Row], bool]] = {
        "Brier score above that of the base rate": lambda row: (
            row["calibration"]["brier"] >= row["calibration"]["brier of the base rate"]
        ),
        "calibration error above 0.05 with 500 samples or more": lambda row: (
            row["samples"] >= 500 and row["calibration"]["error"] > 0.05
        ),
        "calibration error above 0.1 at the top of the list": lambda row: row["calibration"]["error at the top"] > 0.1,
    }
    lines = [f"P(wrong) is off in these of {len(judged)} cells, in at least one seed:", ""]
    for words, is_off in limits.items():
        names = [own.cell.name for own in judged if any(map(is_off, own.rows))]
        lines.append(f"- {words}: {len(names)}" + (f" ({', '.join(names)})" if names else ""))
    return lines


def _part(title: str, words: str, cells: list[Measured], columns: dict[str, Column]) -> list[str]:
    lines = [[own.cell.name, *(column(own) for column in columns.values())] for own in cells]
    return [f"## {title}", "", words, "", *table(["cell", *columns], lines)]


def _family(name: str) -> Column:
    def column(own: Measured) -> str:
        best = own.best(name)
        return shown(own.other(best), 3) if best else "–"

    return column


_COMPARED: dict[str, Column] = {
    "ours": lambda own: shown(own.values("ours"), 3),
    "cleanlab": _family("cleanlab"),
    "SimiFeat": _family("SimiFeat"),
    "cleanlab on our predictions": _family("cleanlab on ours"),
    "best of all": lambda own: own.best(*ALL) or "",
    "ours less the best of all": lambda own: f"{shown(own.gains(*ALL), 3)} {own.verdict(*ALL)}",
    "less cleanlab and SimiFeat": lambda own: f"{shown(own.gains(*OTHERS), 3)} {own.verdict(*OTHERS)}",
}


def _average_precision(cells: list[Measured]) -> list[str]:
    columns: dict[str, Column] = {
        "wrong": lambda own: shown([row["wrong"] / row["samples"] for row in own.rows], 3),
        **_COMPARED,
        "seeds": lambda own: str(len(own.rows)),
    }
    words = "1 means that every wrong label comes before every right one. The differences are paired by seed."
    return _part("Average precision", words, cells, columns)


def _contradictions(cells: list[Measured]) -> list[str]:
    """The same without samples of which the data say two things."""
    settled = [
        Measured(own.cell, [{**row, **row["without contradicted"]} for row in own.rows])
        for own in cells
        if any(own.values("contradicted"))
    ]
    columns: dict[str, Column] = {"left out": lambda own: shown(own.values("contradicted"), 0), **_COMPARED}
    return _part("Contradictions in the data as they come", _CONTRADICTIONS, settled, columns) if settled else []


def _likely_errors(cells: list[Measured]) -> list[str]:
    def inside(side: str, key: str, digits: int) -> Column:
        return lambda own: shown([row[side][key] for row in own.rows if row[side][key] is not None], digits)

    columns: dict[str, Column] = {
        "samples": lambda own: str(own.rows[0]["samples"]),
        "wrong": lambda own: shown([row["wrong"] for row in own.rows], 0),
        "likely errors": inside("found", "count", 0),
        "precision": inside("found", "precision", 2),
        "recall": inside("found", "recall", 2),
        "cleanlab's issues": inside("cleanlab found", "count", 0),
        "its precision": inside("cleanlab found", "precision", 2),
        "its recall": inside("cleanlab found", "recall", 2),
        "false, of all labels": lambda own: shown([100 * share for share in _false_shares(own)], 1) + " %",
    }
    words = "`is_error` (in labels.csv `suspect`) against the errors put in, and the issues of cleanlab's filter."
    return _part("The likely errors", words, cells, columns)


def _false_shares(own: Measured) -> Iterator[float]:
    for row in own.rows:
        yield row["found"]["count"] * (1 - (row["found"]["precision"] or 0.0)) / row["samples"]


def _calibration(cells: list[Measured]) -> list[str]:
    def inside(key: str, digits: int = 3) -> Column:
        return lambda own: shown([row["calibration"][key] for row in own.rows], digits)

    columns: dict[str, Column] = {
        "Brier score": inside("brier", 4),
        "of the base rate": inside("brier of the base rate", 4),
        "calibration error": inside("error"),
        "at the top": lambda own: inside("error at the top")(own) if own.has_errors else "–",
        "expected wrong": inside("expected wrong", 0),
        "wrong": lambda own: shown([row["wrong"] for row in own.rows], 0),
    }
    words = (
        "P(wrong) against what was put in. The Brier score of the base rate is that of the true share of errors as the "
        "P(wrong) of every label. The expected calibration error is taken over ten bins of equal mass, and over the "
        "first rows of the list, twice as many as there are errors, in at most ten bins of 20 rows or more.\n\n"
        f"{_UNKNOWABLE}\n\n"
        "![Reliability of P(wrong)](figures/label-errors-calibration.svg)"
    )
    return _part("Calibration", words, cells, columns)


def _time(cells: list[Measured]) -> list[str]:
    def ratios(own: Measured) -> list[float]:
        return [row["seconds"] / row["scikit-learn and cleanlab seconds"] for row in own.rows]

    columns: dict[str, Column] = {
        "samples × features": lambda own: f"{own.rows[0]['samples']} × {own.rows[0]['features']}",
        "ours / scikit-learn and cleanlab": lambda own: f"{statistics.median(ratios(own)):.2f}",
        "seconds, ours": lambda own: f"{statistics.median(own.values('seconds')):.1f}",
    }
    slower = sum(statistics.median(ratios(own)) > 1 for own in cells)
    words = (
        "Processor seconds, one thread, in the same process one after the other; medians over seeds. Ours takes "
        f"longer in {slower} of {len(cells)} cells. The other side chooses C among five values, and makes all four "
        "scores and the issues of the filter."
    )
    return _part("Processor time", words, cells, columns)


def _left_out(cells: list[Measured]) -> list[str]:
    measured = {own.cell.name: {row["seed"] for row in own.rows} for own in cells}
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
    """Mean P(wrong) and the share of wrong labels in each bin that holds enough samples."""
    sums = [[sum(values) for values in zip(*(own[key] for own in bins), strict=True)] for key in _SUMS]
    return [(p / count, wrong / count) for count, p, wrong in zip(*sums, strict=True) if count >= _LEAST_IN_BIN]


def draw_reliability(cells: list[Measured]) -> None:
    """The share of wrong labels by P(wrong), for each kind of error, all cells and seeds together."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context({"svg.hashsalt": "calibration", "svg.fonttype": "none"}):
        figure, axes = pyplot.subplots(figsize=(5.2, 4.6))
        axes.plot([0, 1], [0, 1], color="#999999", linewidth=0.8, linestyle="--", label="calibrated")
        for kind, colour in _COLOURS.items():
            rows = [row for own in cells if _kind(own.cell) == kind for row in own.rows if row["calibration"]]
            points = _reliability([row["calibration"]["bins"] for row in rows])
            if points:
                axes.plot(*zip(*points, strict=True), color=colour, marker="o", markersize=4, label=kind)
        axes.set(xlabel="P(wrong)", ylabel="share that is wrong", xlim=(0, 1), ylim=(0, 1))
        axes.legend(frameon=False)
        figure.tight_layout()
        FIGURE.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(FIGURE, metadata={"Date": None})
        pyplot.close(figure)
