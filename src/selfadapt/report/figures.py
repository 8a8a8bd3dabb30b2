"""Figures as SVG files."""

import statistics
import textwrap
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
Curves = Sequence[tuple[str, str, str, str]]  # key in metrics.jsonl, label, colour, line style
FOUR_CURVES: Curves = (
    ("train_accuracy_given", "training (given labels)", "#c8553d", "--"),
    ("train_accuracy_true", "training (true labels)", "#c8553d", "-"),
    ("validation_accuracy_given", "validation (given labels)", "#2f6690", "--"),
    ("validation_accuracy_true", "validation (true labels)", "#2f6690", "-"),
)
PORTIONS: Curves = (
    ("clean_accuracy_true", "clean samples", "#2f6690", "-"),
    ("corrupted_accuracy_true", "corrupted samples", "#c8553d", "-"),
)
UNDER_ATTACK: Curves = (
    ("robust_clean_accuracy", "clean accuracy", "#2f6690", "-"),
    ("robust_accuracy", "robust accuracy", "#c8553d", "-"),
)
_PALETTE = ("#2f6690", "#c8553d", "#5b8e4b", "#8a5a9e", "#b8892b", "#3d8c8c", "#a34d6d", "#6b7280")
_MAX_ANNOTATED = 20  # classes of a matrix whose cells show their values
_MAX_NAMED = 40  # classes of a matrix
_MAX_NAME = 24  # characters of a class name beside a matrix


def _figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple["Figure", "list[Axes]"]:
    """A figure with a grid of panels, row by row."""
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
        panels = [figure.add_subplot(rows, columns, number + 1) for number in range(rows * columns)]
    for axes in panels:
        axes.grid(color=_FAINT, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


def _save(figure: "Figure", path: Path) -> None:
    from matplotlib import rc_context
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_parse_math(False)  # class names may contain dollar signs
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
    """Plot the curves that were measured over the epochs, with a line at the first update of the targets.

    FOUR_CURVES are those of Figure 1 of the paper, PORTIONS the training accuracy on clean and corrupted samples,
    UNDER_ATTACK those of Figures 5 and 14. `points` are additional (epoch, accuracy, label).
    """
    from matplotlib.ticker import MaxNLocator

    figure, (axes,) = _figure(5.6, 3.6)
    epochs = [record["epoch"] for record in metrics]
    for key, label, colour, line in curves:
        values = [record.get(key) for record in metrics]
        if any(value is not None for value in values):
            percent = [float("nan") if value is None else 100 * value for value in values]
            axes.plot(epochs, percent, line, color=colour, label=label, linewidth=1.8)
    for epoch, value, label in dict.fromkeys(points):
        late = len(epochs) > 1 and epoch > (epochs[0] + epochs[-1]) / 2  # the label must stay within the figure
        axes.plot(epoch, 100 * value, "x", color=INK, markersize=7)
        axes.annotate(
            label, (epoch, 100 * value), xytext=(-6 if late else 6, -12), textcoords="offset points", fontsize=8,
            ha="right" if late else "left",
        )  # fmt: skip
    if start_epoch is not None and epochs[0] <= start_epoch < epochs[-1]:
        axes.axvline(start_epoch, color=INK, linewidth=0.8, linestyle=":")
        axes.annotate(
            "targets are updated", (start_epoch, 0.02), xycoords=("data", "axes fraction"), xytext=(4, 0),
            textcoords="offset points", fontsize=8,
        )  # fmt: skip
    axes.set(xlabel="epoch", ylabel="accuracy (%)", ylim=(None, min(101, axes.get_ylim()[1])))
    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", steps=[1, 2, 2.5, 5, 10], integer=True))
    _legend_below(figure)
    _save(figure, path)


def panels(
    metrics: Mapping[str, Sequence[dict[str, Any]]],
    clean: Mapping[str, float],
    curves: Curves,
    columns: int,
    path: Path,
) -> None:
    """Plot the curves of several runs, a panel each. Dotted: the share of clean training labels."""
    rows = -(-len(metrics) // columns)
    figure, grid = _figure(3.2 * columns, 2.4 * rows + 0.4, rows, columns)
    for axes in grid[len(metrics) :]:
        axes.set_visible(False)
    for axes, (name, records) in zip(grid, metrics.items(), strict=False):
        for key, label, colour, line in curves:
            points = [(record["epoch"], 100 * record[key]) for record in records if record.get(key) is not None]
            axes.plot([x for x, _ in points], [y for _, y in points], line, color=colour, label=label, linewidth=1.4)
        axes.axhline(100 * clean[name], color=INK, linewidth=0.8, linestyle=":")
        axes.set_title(name, fontsize=9)
        axes.set_ylim(0, 101)
    _legend_below(figure)
    _save(figure, path)


Lines = Mapping[str, Sequence[tuple[float, float]]]


def over_columns(
    parts: Mapping[str, Lines],
    label: str,
    columns: str,
    path: Path,
    *,
    dashed: str = "",
    log: bool = False,
    marker: str = "o",
) -> None:
    """Plot a panel for each part of a table, with a line for each row over its columns.

    Rows whose name starts with `dashed` are dashed, in the colour of the row with the same last word.
    """
    figure, grid = _figure(max(6.0, 4.6 * len(parts)), 4.0, 1, len(parts))
    for axes, (part, lines) in zip(grid, parts.items(), strict=True):
        kinds = list(dict.fromkeys(name.split(", ")[-1] if dashed else name for name in lines))
        for name, points in lines.items():
            kind = kinds.index(name.split(", ")[-1] if dashed else name)
            line = "--" if (dashed and name.startswith(dashed)) or kind >= len(_PALETTE) else "-"
            axes.plot(
                [x for x, _ in points], [y for _, y in points], marker + line, color=_PALETTE[kind % len(_PALETTE)],
                label=name, linewidth=1.6, markersize=4,
            )  # fmt: skip
        axes.set(xlabel=columns, ylabel=label if axes is grid[0] else "", yscale="log" if log else "linear")
        if log:
            axes.yaxis.set_major_formatter("{x:g}")
        axes.set_title(part, fontsize=10)
    _legend_below(figure)
    _save(figure, path)


def _legend_below(figure: "Figure") -> None:
    """Put the longest legend of the panels below all of them, where it hides no curve."""
    handles, labels = max((axes.get_legend_handles_labels() for axes in figure.axes), key=lambda own: len(own[1]))
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=9)


def methods(accuracies: Mapping[str, Sequence[float]], path: Path) -> None:
    """Plot the accuracy of each method, the best on top: a dot for each seed, a tick at the mean."""
    labels = {name: textwrap.wrap(name, 28) for name in accuracies}
    figure, (axes,) = _figure(5.6, 1.0 + 0.22 * sum(1 + len(lines) for lines in labels.values()))
    ordered = sorted(accuracies.items(), key=lambda item: statistics.fmean(item[1]))
    for position, (_, values) in enumerate(ordered):
        mean, right = 100 * statistics.fmean(values), 100 * max(values)
        if len(values) > 1:
            axes.plot(mean, position, "|", color=_PALETTE[1], markersize=16, markeredgewidth=2.4)
        size = 4 if len(values) > 1 else 8
        axes.plot([100 * value for value in values], [position] * len(values), "o", color=_PALETTE[0], markersize=size)
        axes.annotate(f"{mean:.1f}", (right, position), xytext=(10, 0), textcoords="offset points", va="center")
    axes.set(xlabel="test accuracy (%)", ylim=(-0.6, len(ordered) - 0.4))
    axes.margins(x=0.12)
    axes.set_xlim(right=min(axes.get_xlim()[1], 100.5))
    axes.set_yticks(range(len(ordered)), ["\n".join(labels[name]) for name, _ in ordered], fontsize=9)
    axes.grid(visible=False, axis="x")
    _save(figure, path)


def stacked_bars(bars: Mapping[str, Mapping[str, float]], label: str, path: Path) -> None:
    """Plot a stacked bar for each row, in the given order, with its total."""
    figure, (axes,) = _figure(8.4, 1.4 + 0.42 * len(bars))
    pieces = list(dict.fromkeys(piece for own in bars.values() for piece in own))
    left = dict.fromkeys(bars, 0.0)
    for number, piece in enumerate(pieces):
        lengths = [own.get(piece, 0.0) for own in bars.values()]
        axes.barh(list(bars), lengths, left=list(left.values()), height=0.6, color=_PALETTE[number], label=piece)
        left = {name: start + length for (name, start), length in zip(left.items(), lengths, strict=True)}
    for position, length in enumerate(left.values()):
        axes.annotate(f"{length:.3g}", (length, position), xytext=(6, 0), textcoords="offset points", va="center")
    axes.invert_yaxis()  # the first on top
    axes.set(xlabel=label)
    axes.margins(x=0.08)
    axes.grid(visible=False, axis="y")
    figure.legend(loc="outside upper center", ncols=len(pieces), frameon=False, fontsize=9)
    _save(figure, path)


def pretraining_curves(metrics: Sequence[dict[str, Any]], path: Path) -> None:
    """Plot loss, standard deviation and rank of the features, and the online probe if there is one."""
    curves = [
        ("loss", "pretraining_loss", 1),
        ("feature std", "feature_std", 1),
        ("effective rank", "effective_rank", 1),
    ]
    probes = (("held out", "online_probe_held_out"), ("training", "online_probe_train"))
    curves += [(f"online probe, {name} (%)", key, 100) for name, key in probes if metrics[-1].get(key) is not None][:1]
    figure, grid = _figure(7.2, 4.6, 2, 2)
    grid[-1].set_visible(len(curves) == len(grid))
    for number, (axes, (title, key, scale)) in enumerate(zip(grid, curves, strict=False)):
        values = [scale * record[key] for record in metrics]
        axes.plot([record["epoch"] for record in metrics], values, color=_PALETTE[number], linewidth=1.8)
        axes.set(xlabel="epoch", title=title)
        axes.title.set_fontsize(10)
        if key == "feature_std":
            axes.set_ylim(0, None)
    _save(figure, path)


def most_confused(values: "Matrix") -> list[int]:
    """The classes to show of a class-by-class matrix: all, or the 40 with the largest sums off the diagonal."""
    confusion = values - np.diag(np.diag(values))
    order = np.argsort(-(confusion.sum(0) + confusion.sum(1)), kind="stable")
    return sorted(order[:_MAX_NAMED].tolist())


def matrix(
    values: "Matrix",
    classes: Sequence[str],
    rows: str,
    columns: str,
    path: Path,
    *,
    decimals: int,
    shown: Sequence[int],
) -> None:
    """Plot the shown classes of a class-by-class matrix; empty cells (NaN) are white."""
    values, names = values[np.ix_(shown, shown)], [_shortened(classes[k]) for k in shown]
    size = min(8.0, 2.6 + 0.36 * len(names))
    figure, (axes,) = _figure(size + 0.6, size)
    axes.grid(visible=False)
    image = axes.imshow(values, cmap="Blues", aspect="equal")
    figure.colorbar(image, ax=axes, shrink=0.8)
    axes.set(xlabel=columns, ylabel=rows)
    few, short = len(names) <= _MAX_ANNOTATED, max(map(len, names)) < 4
    axes.set_xticks(range(len(names)), names, rotation=0 if short and few else 90, fontsize=9 if few else 7)
    axes.set_yticks(range(len(names)), names, fontsize=9 if few else 7)
    if few:
        finite = values[np.isfinite(values)]
        middle = (finite.min() + finite.max()) / 2 if finite.size else 0.0
        for i, j in zip(*np.nonzero(np.isfinite(values)), strict=True):
            if values[i, j]:
                axes.text(
                    j, i, f"{values[i, j]:.{decimals}f}", ha="center", va="center", fontsize=7,
                    color="white" if values[i, j] > middle else INK,
                )  # fmt: skip
    _save(figure, path)


def _shortened(name: str) -> str:
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…"
