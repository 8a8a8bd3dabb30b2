"""The page of a run, and the page over several: self-contained HTML made from run folders alone."""

import base64
import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from selfadapt.core.atomic_files import atomic_write
from selfadapt.core.errors import UserError
from selfadapt.report import figures
from selfadapt.review.conflicts import conflicts_of
from selfadapt.review.statistics.label_figures import label_figures
from selfadapt.review.summary import review_summary
from selfadapt.run_folder.folder import RunFolder
from selfadapt.run_folder.labels_file import read_report

_MATRIX_CLASSES = 200  # beyond so many a class-by-class picture shows nothing
_LISTED = 25  # suspects in the table


@dataclass(frozen=True)
class Picture:
    title: str
    caption: str
    source: str  # a data address, so that the page needs no other file
    wide: bool = False

    @classmethod
    def of(cls, title: str, caption: str, path: Path, *, wide: bool = False) -> "Picture":
        """The picture in an SVG file."""
        encoded = base64.b64encode(path.read_bytes()).decode() if path.exists() else ""
        return cls(title, caption, f"data:image/svg+xml;base64,{encoded}", wide)


def page_from(template: str, path: Path, /, **content: Any) -> Path:
    """A page made from one of the templates."""
    html = _environment().get_template(template).render(**content)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(html)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from error
    return path


def write_run_page(folder: RunFolder, path: Path | None = None) -> Path:
    """Draw the figures of a run, with labels or without, and write its report.html, or its page at `path`."""
    if folder.read_run()["settings"]["kind"] == "pretraining":
        return _write_pretraining_page(folder, path or folder.page)
    pictures = _draw(folder)
    return page_from(
        "run.html",
        path or folder.page,
        **_run_context(folder),
        pictures=pictures,
        labels=_suspects(folder),
        conflicts=_conflicts(folder),
        conflicts_sheet=_conflicts_sheet(folder),
        figures=label_figures(folder) if folder.labels_file.exists() else None,
        review=review_summary(folder),
    )


def _write_pretraining_page(folder: RunFolder, page: Path) -> Path:
    """Draw the figures of a run without labels and write its page."""
    metrics = folder.read_metrics()
    pictures = []
    if metrics:
        path = folder.figures / "pretraining.svg"
        figures.pretraining_curves(metrics, path)
        caption = (
            "The loss; how widely features spread (near 0 they have collapsed) and how many directions the "
            "features use; and, where labels are known, the accuracy of a linear layer that learns beside the network."
        )
        pictures.append(Picture.of("Over training", caption, path, wide=True))
    probe = folder.read_if_there(folder.probe_file)
    return page_from("pretraining.html", page, **_run_context(folder), pictures=pictures, probe=probe)


def write_comparison_page(folders: Sequence[RunFolder], path: Path) -> Path:
    """Write one page over several runs at `path`, with a link to the page of each."""
    runs = []
    for folder in folders:
        if folder.read_run()["settings"]["kind"] == "pretraining":
            raise UserError(f"{folder.path} is a run without labels; pages over several runs compare those with labels")
        if not folder.page.exists():
            write_run_page(folder)
        drawn = folder.figures / "accuracy.svg"
        curves = Picture.of("", "", drawn) if drawn.exists() else None
        link = quote(os.path.relpath(folder.page, path.parent))
        runs.append({**_run_context(folder), "curves": curves, "link": link})
    pictures = _draw_comparison(runs, path.parent / "figures")
    return page_from("comparison.html", path, runs=runs, methods=_by_method(runs), pictures=pictures)


def _by_method(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and spread over the runs that differ in nothing but the seed."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for item in runs:
        if item["result"]:
            settings = {**item["run"]["settings"], "seed": None}
            if settings["data"]["noise"] is not None:  # a rate that the method was told is another one with each seed
                settings["method"] = {**settings["method"], "noise_rate": None}
            groups.setdefault(json.dumps(settings, sort_keys=True), []).append(item)
    rows = []
    for items in groups.values():
        results = [item["result"] for item in items]
        data, noise = items[0]["run"]["data"]["name"], items[0]["run"]["settings"]["data"]["noise"] or "–"
        tested = [result["test_accuracy"] for result in results if result["test_accuracy"] is not None]
        recovered = [result["label_recovery"] for result in results if result["label_recovery"] is not None]
        rows.append(
            {
                "data": data,
                "noise": noise,
                "cell": (data, noise),
                "method": items[0]["label"],
                "accuracies": tested,
                "seeds": len(results),
                "test_accuracy": statistics.fmean(tested) if tested else None,
                "spread": statistics.stdev(tested) if len(tested) > 1 else None,
                "label_recovery": statistics.fmean(recovered) if recovered else None,
                "seconds": round(statistics.fmean(result["seconds"] for result in results), 1),
            }
        )
    return sorted(rows, key=lambda row: (row["data"], row["noise"], -(row["test_accuracy"] or 0)))


def _draw_comparison(runs: Sequence[dict[str, Any]], folder: Path) -> list[Picture]:
    """Methods side by side where the runs share data and noise; curves over the noise rate where they differ in it."""
    finished = [item for item in runs if item["result"] and item["result"]["test_accuracy"] is not None]
    rows = _by_method(finished)
    accuracies = {row["method"]: row["accuracies"] for row in rows}
    pictures = []
    if len({row["cell"] for row in rows}) == 1 and 1 < len(accuracies) == len(rows):
        figures.methods(accuracies, folder / "methods.svg")
        caption = "A dot for each seed, a tick for their mean."
        pictures.append(Picture.of("Test accuracy", caption, folder / "methods.svg", wide=True))
    points = _sweep_points(finished)
    if any(len({rate for rate, *_ in own}) > 1 for own in points.values()):
        figures.noise_sweep(points, folder / "noise.svg")
        caption = "How much is memorised, and how wrong the model is on true labels, as noise grows."
        pictures.append(Picture.of("Over the noise rate", caption, folder / "noise.svg", wide=True))
    return pictures


def _sweep_points(runs: Sequence[dict[str, Any]]) -> dict[str, list[tuple[float, float, float]]]:
    points: dict[tuple[str, str, str | None], list[tuple[float, float, float]]] = {}
    for item in runs:
        last, noise = item["result_epoch"], item["run"]["noise"]
        truth = last.get("validation_accuracy_true", last.get("validation_accuracy_given"))
        rate = 0.0 if noise is None else noise["nominal"]
        if rate is None or truth is None:
            continue
        gap = last["train_accuracy_given"] - last["validation_accuracy_given"]
        own = (item["run"]["data"]["name"], item["label"])
        points.setdefault((*own, None if noise is None else noise["kind"]), []).append((rate, gap, 1 - truth))
    for data, label, kind in list(points):
        noisy = [found for found in points if found[:2] == (data, label) and found[2] is not None]
        if kind is None and noisy:  # no noise is the first point of each kind
            clean = points.pop((data, label, None))
            for found in noisy:
                points[found].extend(clean)
    several = len({data for data, *_ in points}) > 1
    return {
        ", ".join(word for word in (data if several else None, label, kind) if word): values
        for (data, label, kind), values in points.items()
    }


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
        "method": run["method"],
        "label": run["method"] + _fixed_start(run["settings"]["method"]),
        "epochs_done": len(metrics),
        "result": run.get("result"),
        "result_epoch": _result_epoch(run, metrics),
        "calibration": folder.read_if_there(folder.calibration_file),
        "attacks": folder.read_if_there(folder.attack_file),
        "shift": folder.read_if_there(folder.shift_file),
    }


def _result_epoch(run: dict[str, Any], metrics: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The metrics of the epoch whose network is the result."""
    last = run["result"]["result_epoch"] if "result" in run and "result_epoch" in run["result"] else len(metrics)
    return metrics[last - 1] if metrics else {}


def _fixed_start(method: dict[str, Any]) -> str:
    start_epoch = method.get("start_epoch")
    return f", E_s = {start_epoch}" if isinstance(start_epoch, int) else ""


def _suspects(folder: RunFolder) -> list[dict[str, str]]:
    if not folder.labels_file.exists():
        return []
    return [row for row in folder.read_labels()[: 4 * _LISTED] if row["suspect"] == "1"][:_LISTED]


def _conflicts(folder: RunFolder) -> list[list[dict[str, Any]]]:
    """The members of each group of duplicates with different labels; those that disagree are marked."""
    groups = folder.read_duplicates() if folder.labels_file.exists() else []
    if not groups:
        return []
    rows, found = folder.read_labels(), conflicts_of(read_report(folder), groups)[:_LISTED]
    return [[{**rows[row], "disagrees": row in own.disagreeing} for row in own.rows] for own in found]


def _conflicts_sheet(folder: RunFolder) -> Picture | None:
    if not folder.duplicates_sheet.exists():
        return None
    caption = "A line for each group, with the labels as given. A frame marks those that disagree."
    return Picture.of("Duplicates with different labels", caption, folder.duplicates_sheet, wide=True)


def _draw(folder: RunFolder) -> list[Picture]:
    run, metrics = folder.read_run(), folder.read_metrics()
    pictures = []
    if len(metrics) > 1:  # one epoch is no curve
        path = folder.figures / "accuracy.svg"
        figures.accuracy_curves(metrics, figures.FOUR_CURVES, run["start_epoch"], path)
        caption = (
            "Dashed lines count agreement with the labels as given, mistakes included; solid lines count the truth, "
            "where it is known. A dashed training line that climbs far above the dashed validation line is a model "
            "that memorises the mistakes."
        )
        pictures.append(Picture.of("Accuracy over training", caption, path, wide=True))
        if all(metrics[-1].get(key) is not None for key, *_ in figures.PORTIONS):
            path = folder.figures / "portions.svg"
            figures.accuracy_curves(metrics, figures.PORTIONS, run["start_epoch"], path)
            caption = (
                "How many training samples are predicted as what they truly are. Where the lower line falls, the "
                "model memorises wrong labels; where it rises to the upper one, it corrects them."
            )
            pictures.append(Picture.of("Samples that noise changed, and the others", caption, path, wide=True))
    attacked = [record for record in metrics if "robust_accuracy" in record]
    if attacked:
        path = folder.figures / "robust.svg"
        others = [
            (found["epoch"], found["robust_accuracy"], f"{found['attack']}, {found['images']:,} images")
            for found in (folder.read_if_there(folder.attack_file) or {}).values()
        ]
        figures.accuracy_curves(attacked, figures.UNDER_ATTACK, run["start_epoch"], path, points=others)
        caption = (
            f"After each late epoch, {attacked[-1]['robust_images']:,} test images, the same each time, under PGD-20. "
            "A lower line that falls while the upper one rises: the network overfits to the attacks of its training. "
            "Crosses are what selfadapt attack found."
        )
        pictures.append(Picture.of("Under attack over training", caption, path, wide=True))
    coverage = folder.read_if_there(folder.coverage_file)
    if coverage is not None:
        path = folder.figures / "coverage.svg"
        figures.risk_coverage({name: own["curve"] for name, own in coverage["selectors"].items()}, path)
        caption = (
            "How often the model is wrong on test samples that it answers, when it answers only those that it is "
            "most confident of, for each way to measure that."
        )
        pictures.append(Picture.of("Error and coverage", caption, path, wide=True))
    if folder.labels_file.exists() and len(run["data"]["classes"]) <= _MATRIX_CLASSES:
        pictures += _draw_matrices(folder, run["data"]["classes"])
    if folder.transition_file.exists() and len(run["data"]["classes"]) <= _MATRIX_CLASSES:
        path = folder.figures / "transition.svg"
        odds = 100 * np.array(folder.read_transition())
        figures.matrix(odds, run["data"]["classes"], "class by the suggestions", "given label", path, decimals=0)
        caption = "Of the samples that belong to a class by the suggestions, how many percent were given which label."
        pictures.append(Picture.of("How labels go wrong, as estimated", caption, path))
    if folder.suspects_sheet.exists():
        caption = "The likeliest errors of the training split: as given → as suggested."
        pictures.append(Picture.of("Look at these first", caption, folder.suspects_sheet, wide=True))
    return pictures


def _draw_matrices(folder: RunFolder, classes: Sequence[str]) -> list[Picture]:
    labels = [row for row in folder.read_labels() if row["part"] == "train"]
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
        Picture.of("Recovered labels", f"How many samples of each {words} were recovered as which class.", recovered),
        Picture.of(
            "Sample weights", "The mean weight with which these samples count in training. White: no sample.", weights
        ),
    ]
