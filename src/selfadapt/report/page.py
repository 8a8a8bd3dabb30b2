"""The page of a run, and the page over several: self-contained HTML made from run folders alone."""

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from selfadapt.report import figures
from selfadapt.report.results import RunFolder, whole_file

_MATRIX_CLASSES = 200  # beyond so many a class-by-class picture shows nothing
_LISTED = 25  # suspects in the table

METHOD_NAMES = {"erm": "ordinary training", "sat": "self-adaptive training"}


@dataclass(frozen=True)
class Picture:
    title: str
    caption: str
    source: str  # a data address, so that the page needs no other file
    wide: bool = False


def write_run_page(folder: RunFolder) -> Path:
    """Draw the figures of a run and write its report.html."""
    pictures = _draw(folder)
    html = (
        _environment()
        .get_template("run.html")
        .render(**_run_context(folder), pictures=pictures, labels=_suspects(folder))
    )
    return _write(folder.page, html)


def write_comparison_page(folders: Sequence[RunFolder], path: Path) -> Path:
    """Write one page over several runs at `path`, with a link to the page of each."""
    runs = []
    for folder in folders:
        if not folder.page.exists():
            write_run_page(folder)
        curves = _picture("", "", folder.figures / "accuracy.svg")
        link = os.path.relpath(folder.page, path.parent)
        runs.append({**_run_context(folder), "curves": curves, "link": link})
    return _write(path, _environment().get_template("comparison.html").render(runs=runs))


def _write(path: Path, html: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        file.write(html)
    return path


def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(loader=PackageLoader("selfadapt.report"), autoescape=True, undefined=StrictUndefined)
    environment.filters["percent"] = lambda value: "–" if value is None else f"{100 * value:.1f} %"
    environment.filters["count"] = lambda value: "–" if value is None else f"{value:,}"
    return environment


def _run_context(folder: RunFolder) -> dict[str, Any]:
    run, metrics = folder.read_run(), folder.read_metrics()
    return {
        "run": run,
        "name": folder.path.name,
        "path": folder.path,
        "unreadable": folder.read_unreadable(),
        "method": METHOD_NAMES.get(run["settings"]["method"], run["settings"]["method"]),
        "epochs_done": len(metrics),
        "result": run.get("result"),
        "last": metrics[-1] if metrics else {},
    }


def _suspects(folder: RunFolder) -> list[dict[str, str]]:
    if not folder.labels_file.exists():
        return []
    return [row for row in folder.read_labels()[: 4 * _LISTED] if row["suspect"] == "1"][:_LISTED]


def _draw(folder: RunFolder) -> list[Picture]:
    run, metrics = folder.read_run(), folder.read_metrics()
    pictures = []
    if metrics:
        path = folder.figures / "accuracy.svg"
        figures.accuracy_curves(metrics, run["start_epoch"], path)
        caption = (
            "Dashed lines count agreement with the labels as given, mistakes included; solid lines count the truth, "
            "where it is known. A dashed training line that climbs far above the dashed validation line is a model "
            "that learns the mistakes by heart."
        )
        pictures.append(_picture("Accuracy over training", caption, path, wide=True))
    if folder.labels_file.exists() and len(run["data"]["classes"]) <= _MATRIX_CLASSES:
        pictures += _draw_matrices(folder, run["data"]["classes"])
    if (folder.figures / "suspects.svg").exists():
        caption = "The most suspicious labels: as given → as suggested."
        pictures.append(_picture("Look at these first", caption, folder.figures / "suspects.svg", wide=True))
    return pictures


def _draw_matrices(folder: RunFolder, classes: Sequence[str]) -> list[Picture]:
    labels = folder.read_labels()
    known = bool(labels) and "truth" in labels[0]
    column, words = ("truth", "true label") if known else ("given", "given label")
    number = {name: k for k, name in enumerate(classes)}
    count = np.zeros((len(classes), len(classes)))
    weight = np.zeros_like(count)
    for row in labels:
        cell = number[row[column]], number[row["suggested"]]
        count[cell] += 1
        weight[cell] += float(row["weight"])
    with np.errstate(invalid="ignore"):
        mean_weight = weight / count
    recovered = folder.figures / "recovered.svg"
    weights = folder.figures / "weights.svg"
    figures.matrix(count, classes, words, "recovered label", recovered, decimals=0)
    figures.matrix(mean_weight, classes, words, "recovered label", weights, decimals=2)
    return [
        _picture("Recovered labels", f"How many samples of each {words} were recovered as which class.", recovered),
        _picture(
            "Sample weights", "The mean weight with which these samples count in training. White: no sample.", weights
        ),
    ]


def _picture(title: str, caption: str, path: Path, *, wide: bool = False) -> Picture:
    encoded = base64.b64encode(path.read_bytes()).decode() if path.exists() else ""
    return Picture(title, caption, f"data:image/svg+xml;base64,{encoded}", wide)
