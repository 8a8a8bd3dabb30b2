"""The report that compares several runs."""

import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from selfadapt.core.errors import UserError
from selfadapt.report import figures
from selfadapt.report.contact_sheet import SheetImage
from selfadapt.report.html_pages import Chart, write_page
from selfadapt.report.page import recorded_sheet, run_context, write_run_page
from selfadapt.run_folder.folder import RunFolder

_SHOWN_ERRORS = 24  # likely errors on the contact sheet

Runs = Sequence[dict[str, Any]]


def write_comparison_page(folders: Sequence[RunFolder], path: Path) -> Path:
    """Write one page about several runs, with links to their reports.

    It opens with the result in one sentence and the first likely label errors of the best method, if all runs share
    data and noise.
    """
    runs = []
    for folder in folders:
        if folder.read_run()["settings"]["kind"] == "pretraining":
            raise UserError(f"{folder.path} is a run without labels; only runs with labels can be compared")
        if not folder.page.exists():
            write_run_page(folder)
        runs.append({**run_context(folder), "folder": folder, "link": quote(os.path.relpath(folder.page, path.parent))})
    groups = _by_method(runs)
    is_one_task = len({group["task"] for group in groups}) == 1
    best = groups[0] if is_one_task and groups[0]["test_accuracy"] is not None else None
    return write_page(
        "comparison.html",
        path,
        names=sorted({item["run"]["data"]["name"] for item in runs}),
        runs=runs,
        best=best,
        errors=[] if best is None else _first_errors(best),
        groups=groups,
        is_one_task=is_one_task,
        charts=_draw(runs, groups, path.parent / "figures", one_task=is_one_task),
        curves=_curves(runs),
    )


def _by_method(runs: Runs) -> list[dict[str, Any]]:
    """Means over finished runs that differ only in the seed; the best first, within each task."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for item in runs:
        if item["result"]:
            settings = {**item["run"]["settings"], "seed": None}
            if settings["data"]["noise"] is not None:  # the actual noise rate, which a method may use, varies by seed
                settings["method"] = {**settings["method"], "noise_rate": None}
            groups.setdefault(json.dumps(settings, sort_keys=True), []).append(item)
    rows = []
    for items in groups.values():
        results = [item["result"] for item in items]
        run = items[0]["run"]
        tested = [result["test_accuracy"] for result in results if result["test_accuracy"] is not None]
        recovered = [result["label_recovery"] for result in results if result["label_recovery"] is not None]
        rows.append(
            {
                "runs": items,
                "task": (run["data"]["name"], run["settings"]["data"]["noise"] or "–"),
                "noise": run["noise"],
                "method": items[0]["label"],
                "accuracies": tested,
                "test_accuracy": statistics.fmean(tested) if tested else None,
                "spread": statistics.stdev(tested) if len(tested) > 1 else None,
                "label_recovery": statistics.fmean(recovered) if recovered else None,
                "seconds": round(statistics.fmean(result["seconds"] for result in results), 1),
            }
        )
    return sorted(rows, key=lambda row: (row["task"], -(row["test_accuracy"] or 0)))


def _first_errors(group: dict[str, Any]) -> list[SheetImage]:
    folder = group["runs"][0]["folder"]
    blocks = recorded_sheet(folder, folder.errors_sheet)
    return [image for block in blocks for image in block][:_SHOWN_ERRORS]


def _curves(runs: Runs) -> list[Chart]:
    files = ((item, item["folder"].figures / "accuracy.svg") for item in runs)
    return [Chart.from_file(f"{item['name']}: {item['method']}", "", file) for item, file in files if file.exists()]


def _draw(runs: Runs, groups: Sequence[dict[str, Any]], folder: Path, *, one_task: bool) -> list[Chart]:
    """A dot plot of methods that share data and noise, and curves over the noise rate if it varies."""
    charts = []
    accuracies = {group["method"]: group["accuracies"] for group in groups if group["accuracies"]}
    if one_task and 1 < len(accuracies) == len(groups):
        figures.methods(accuracies, folder / "methods.svg")
        has_seeds = any(len(own) > 1 for own in accuracies.values())
        caption = "A dot for each seed, a tick at the mean." if has_seeds else ""
        charts.append(Chart.from_file("Test accuracy", caption, folder / "methods.svg"))
    points = _sweep_points([item for item in runs if item["result"] and item["result"]["test_accuracy"] is not None])
    if any(len({rate for rate, *_ in own}) > 1 for own in points.values()):
        panels = {
            title: {name: _means_by_rate(own, place) for name, own in points.items()}
            for place, title in enumerate(
                ("training minus validation, given labels", "clean validation error"), start=1
            )
        }
        figures.over_columns(panels, "error (%)", "nominal noise rate (%)", folder / "noise.svg")
        caption = "Generalisation error on given labels, and error on true labels, as the noise increases (Figure 3)."
        charts.append(Chart.from_file("Noise rate", caption, folder / "noise.svg", wide=True))
    return charts


def _means_by_rate(points: Sequence[tuple[float, ...]], place: int) -> list[tuple[float, float]]:
    rates = sorted({point[0] for point in points})
    return [(100 * x, 100 * statistics.fmean(point[place] for point in points if point[0] == x)) for x in rates]


def _sweep_points(runs: Runs) -> dict[str, list[tuple[float, float, float]]]:
    """(noise rate, generalisation error, clean validation error) of each run, by data, method and kind of noise."""
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
        if kind is None and noisy:  # a run without noise is the first point of each kind
            clean = points.pop((data, label, None))
            for found in noisy:
                points[found].extend(clean)
    several = len({data for data, *_ in points}) > 1
    return {
        ", ".join(name for name in (data if several else None, label, kind) if name): values
        for (data, label, kind), values in points.items()
    }
