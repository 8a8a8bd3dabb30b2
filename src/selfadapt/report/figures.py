"""Figures as SVG, each from what a run folder holds."""

import statistics
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from selfadapt.core.atomic_files import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Matrix = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

INK, _FAINT = "#1f2430", "#d8dce3"
Curves = Sequence[tuple[str, str, str, str]]  # key in metrics.jsonl, words, colour, line
FOUR_CURVES: Curves = (
    ("train_accuracy_given", "training, labels as given", "#c8553d", "--"),
    ("train_accuracy_true", "training, true labels", "#c8553d", "-"),
    ("validation_accuracy_given", "validation, labels as given", "#2f6690", "--"),
    ("validation_accuracy_true", "validation, true labels", "#2f6690", "-"),
)
PORTIONS: Curves = (
    ("clean_accuracy_true", "samples that noise left alone", "#2f6690", "-"),
    ("corrupted_accuracy_true", "samples that noise changed", "#c8553d", "-"),
)
UNDER_ATTACK: Curves = (
    ("robust_clean_accuracy", "test images as they are", "#2f6690", "-"),
    ("robust_accuracy", "the same images under attack", "#c8553d", "-"),
)
_PALETTE = ("#2f6690", "#c8553d", "#5b8e4b", "#8a5a9e", "#b8892b", "#3d8c8c", "#a34d6d", "#6b7280")
_MOST_ANNOTATED = 20  # classes up to which a matrix shows its numbers


def _figure(width: float, height: float) -> tuple["Figure", "Axes"]:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "font.family": "sans-serif",
        "font.size": 10,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
    with rc_context(style):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: "Figure", path: Path) -> None:
    from matplotlib import rc_context
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_parse_math(False)  # a class may be called $x$
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "selfadapt", "svg.fonttype": "none"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the browser has the fonts that matplotlib lacks
        with atomic_write(path) as file:
            figure.savefig(file, format="svg", metadata={"Date": None})


def accuracy_curves(
    metrics: Sequence[dict[str, Any]],
    curves: Curves,
    start_epoch: int | None,
    path: Path,
    *,
    points: Sequence[tuple[int, float, str]] = (),
) -> None:
    """Curves over the epochs, as far as they were measured; a line where the targets begin to move.

    FOUR_CURVES are those of the paper's Figure 1, PORTIONS the training accuracy on clean and on corrupted samples,
    UNDER_ATTACK those of Figures 5 and 14. `points` are (epoch, accuracy, word) beside the curves; one that comes twice
    is drawn once.
    """
    from matplotlib.ticker import MaxNLocator

    figure, axes = _figure(8.4, 4.0)
    epochs = [record["epoch"] for record in metrics]
    for key, words, colour, line in curves:
        values = [record.get(key) for record in metrics]
        if any(value is not None for value in values):
            percent = [float("nan") if value is None else 100 * value for value in values]
            axes.plot(epochs, percent, line, color=colour, label=words, linewidth=1.8)
    for epoch, value, word in dict.fromkeys(points):
        late = len(epochs) > 1 and epoch > (epochs[0] + epochs[-1]) / 2  # its word must not run out of the figure
        axes.plot(epoch, 100 * value, "x", color=INK, markersize=7)
        axes.annotate(
            word, (epoch, 100 * value), xytext=(-6 if late else 6, -12), textcoords="offset points", fontsize=8,
            ha="right" if late else "left",
        )  # fmt: skip
    if start_epoch is not None and epochs[0] <= start_epoch < epochs[-1]:
        axes.axvline(start_epoch, color=INK, linewidth=0.8, linestyle=":")
        axes.annotate(
            "targets begin to move", (start_epoch, 0.02), xycoords=("data", "axes fraction"), xytext=(4, 0),
            textcoords="offset points", fontsize=8,
        )  # fmt: skip
    axes.set(xlabel="epoch", ylabel="accuracy (%)", ylim=(None, min(101, axes.get_ylim()[1])))
    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", steps=[1, 2, 2.5, 5, 10], integer=True))
    axes.grid(color=_FAINT, linewidth=0.6)
    _legend_below(figure)
    _save(figure, path)


def panels(
    metrics: Mapping[str, Sequence[dict[str, Any]]],
    clean: Mapping[str, float],
    curves: Curves,
    columns: int,
    path: Path,
) -> None:
    """The same curves over the epochs of several runs, a panel for each; dotted, the share of clean training data."""
    from matplotlib.figure import Figure

    rows = -(-len(metrics) // columns)
    figure = Figure(figsize=(3.2 * columns, 2.4 * rows + 0.4), layout="constrained")
    for number, (name, records) in enumerate(metrics.items(), start=1):
        axes = figure.add_subplot(rows, columns, number)
        for key, words, colour, line in curves:
            points = [(record["epoch"], 100 * record[key]) for record in records if record.get(key) is not None]
            axes.plot([x for x, _ in points], [y for _, y in points], line, color=colour, label=words, linewidth=1.4)
        axes.axhline(100 * clean[name], color=INK, linewidth=0.8, linestyle=":")
        axes.set_title(name, fontsize=9)
        axes.set_ylim(0, 101)
        _plain(axes)
    _legend_below(figure)
    _save(figure, path)


Lines = Mapping[str, Sequence[tuple[float, float]]]


def over_columns(
    parts: Mapping[str, Lines],
    words: str,
    columns: str,
    path: Path,
    *,
    dashed: str = "",
    log: bool = False,
    marker: str = "o",
) -> None:
    """A panel for each part of a table, in it a line for each row over its columns.

    Rows that begin with `dashed` are, in the colour of the row that else has the same name.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(6.0, 4.6 * len(parts)), 4.0), layout="constrained")
    for number, (part, lines) in enumerate(parts.items(), start=1):
        axes = figure.add_subplot(1, len(parts), number)
        kinds = list(dict.fromkeys(name.split(", ")[-1] if dashed else name for name in lines))
        for name, points in lines.items():
            kind = kinds.index(name.split(", ")[-1] if dashed else name)
            line = "--" if (dashed and name.startswith(dashed)) or kind >= len(_PALETTE) else "-"
            axes.plot(
                [x for x, _ in points], [y for _, y in points], marker + line, color=_PALETTE[kind % len(_PALETTE)],
                label=name, linewidth=1.6, markersize=4,
            )  # fmt: skip
        axes.set(xlabel=columns, ylabel=words if number == 1 else "", yscale="log" if log else "linear")
        if log:
            axes.yaxis.set_major_formatter("{x:g}")
        axes.set_title(part, fontsize=10)
        _plain(axes)
    _legend_below(figure)
    _save(figure, path)


def _legend_below(figure: "Figure") -> None:
    """What the lines of the last panel are, below all: no curve is hidden, and no best place is searched for."""
    figure.legend(
        *figure.axes[-1].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9
    )


def _plain(axes: "Axes") -> None:
    axes.grid(color=_FAINT, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def methods(accuracies: Mapping[str, Sequence[float]], path: Path) -> None:
    """The accuracy of each method, best on top: a dot for each seed, a tick for the mean."""
    figure, axes = _figure(8.4, 0.9 + 0.34 * len(accuracies))
    ordered = sorted(accuracies.items(), key=lambda item: statistics.fmean(item[1]))
    for position, (_, values) in enumerate(ordered):
        mean, right = 100 * statistics.fmean(values), 100 * max(values)
        axes.plot(mean, position, "|", color=_PALETTE[1], markersize=16, markeredgewidth=2.4)
        axes.plot([100 * value for value in values], [position] * len(values), "o", color=_PALETTE[0], markersize=4)
        axes.annotate(f"{mean:.1f}", (right, position), xytext=(10, 0), textcoords="offset points", va="center")
    axes.set(xlabel="test accuracy (%)", xlim=(None, 101))
    axes.set_yticks(range(len(ordered)), [name for name, _ in ordered])
    axes.grid(color=_FAINT, linewidth=0.6, axis="y")
    _save(figure, path)


def stacked_bars(bars: Mapping[str, Mapping[str, float]], words: str, path: Path) -> None:
    """A bar for each row, in the order given, of pieces that stand end to end; its whole length is written behind."""
    figure, axes = _figure(8.4, 1.4 + 0.42 * len(bars))
    pieces = list(dict.fromkeys(piece for own in bars.values() for piece in own))
    left = dict.fromkeys(bars, 0.0)
    for number, piece in enumerate(pieces):
        lengths = [own.get(piece, 0.0) for own in bars.values()]
        axes.barh(list(bars), lengths, left=list(left.values()), height=0.6, color=_PALETTE[number], label=piece)
        left = {name: begin + length for (name, begin), length in zip(left.items(), lengths, strict=True)}
    for position, length in enumerate(left.values()):
        axes.annotate(f"{length:.3g}", (length, position), xytext=(6, 0), textcoords="offset points", va="center")
    axes.invert_yaxis()  # the first on top
    axes.set(xlabel=words)
    axes.margins(x=0.08)
    axes.grid(color=_FAINT, linewidth=0.6, axis="x")
    axes.set_axisbelow(True)
    figure.legend(loc="outside upper center", ncols=len(pieces), frameon=False, fontsize=9)
    _save(figure, path)


def noise_sweep(points: Mapping[str, Sequence[tuple[float, float, float]]], path: Path) -> None:
    """Generalisation error and clean validation error over the noise rate, a line for each method (Figure 3).

    A point is (noise rate, generalisation error, clean validation error); points of the same rate are averaged.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    words = ("generalisation error: training less validation,\nlabels as given (%)", "clean validation error (%)")
    for column, title in enumerate(words, start=1):
        axes = figure.add_subplot(1, 2, column)
        for number, (name, own) in enumerate(points.items()):
            rates = sorted({point[0] for point in own})
            means = [100 * statistics.fmean(point[column] for point in own if point[0] == rate) for rate in rates]
            colour = _PALETTE[number % len(_PALETTE)]
            axes.plot([100 * rate for rate in rates], means, "o-", color=colour, label=name, linewidth=1.8)
        axes.set(xlabel="nominal noise rate (%)", ylabel=title)
        axes.grid(color=_FAINT, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    _legend_below(figure)
    _save(figure, path)


def pretraining_curves(metrics: Sequence[dict[str, Any]], path: Path) -> None:
    """Loss, spread and rank of the features, and the online probe where there is one, over the epochs."""
    from matplotlib.figure import Figure

    panels = [
        ("loss", "pretraining_loss", 1),
        ("spread of features", "feature_std", 1),
        ("rank of features", "effective_rank", 1),
    ]
    probed = [
        (f"online probe, {words} (%)", key, 100)
        for words, key in (("held out", "online_probe_held_out"), ("training", "online_probe_train"))
        if metrics[-1].get(key) is not None
    ]
    panels += probed[:1]
    figure = Figure(figsize=(10.4, 2.8), layout="constrained")
    for number, (words, key, scale) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), number + 1)
        values = [scale * record[key] for record in metrics]
        axes.plot([record["epoch"] for record in metrics], values, color=_PALETTE[number], linewidth=1.8)
        axes.set(xlabel="epoch", title=words)
        axes.title.set_fontsize(10)
        axes.grid(color=_FAINT, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        if key == "feature_std":
            axes.set_ylim(0, None)
    _save(figure, path)


def risk_coverage(curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], path: Path) -> None:
    """The error on what is answered over the share that is answered, a line for each (coverage, risk)."""
    figure, axes = _figure(8.4, 4.0)
    for number, (name, (coverage, risk)) in enumerate(curves.items()):
        percent = [[100 * value for value in values] for values in (coverage, risk)]
        axes.plot(*percent, color=_PALETTE[number % len(_PALETTE)], label=name, linewidth=1.8)
    axes.set(xlabel="coverage: answered samples (%)", ylabel="error on answered samples (%)", ylim=(0, None))
    axes.grid(color=_FAINT, linewidth=0.6)
    _legend_below(figure)
    _save(figure, path)


def matrix(values: "Matrix", classes: Sequence[str], rows: str, columns: str, path: Path, *, decimals: int) -> None:
    """A class-by-class matrix; an empty cell (NaN) stays white."""
    size = min(8.0, 2.6 + 0.36 * len(classes))
    figure, axes = _figure(size + 0.6, size)
    image = axes.imshow(values, cmap="Blues", aspect="equal")
    figure.colorbar(image, ax=axes, shrink=0.8)
    axes.set(xlabel=columns, ylabel=rows)
    if len(classes) <= _MOST_ANNOTATED:
        ticks = range(len(classes))
        axes.set_xticks(ticks, classes, rotation=0 if max(map(len, classes)) < 4 else 60)
        axes.set_yticks(ticks, classes)
        finite = values[np.isfinite(values)]
        middle = (finite.min() + finite.max()) / 2 if finite.size else 0.0
        for i, j in zip(*np.nonzero(np.isfinite(values)), strict=True):
            if values[i, j]:
                axes.text(
                    j, i, f"{values[i, j]:.{decimals}f}", ha="center", va="center", fontsize=7,
                    color="white" if values[i, j] > middle else INK,
                )  # fmt: skip
    _save(figure, path)
