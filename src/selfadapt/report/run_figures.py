"""The figures of a run, drawn from its folder."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from selfadapt.report import figures
from selfadapt.report.html_pages import Chart
from selfadapt.run_folder.contents import Attacked, Coverage
from selfadapt.run_folder.folder import RunFolder


def draw_run_charts(folder: RunFolder) -> list[Chart]:
    """Draw the curves and matrices of a run with labels."""
    run, metrics = folder.read_run(), folder.read_metrics()
    return [
        *_accuracy(folder, run, metrics),
        *_robustness(folder, run, metrics),
        *_coverage(folder),
        *_matrices(folder),
    ]


def draw_pretraining_charts(folder: RunFolder) -> list[Chart]:
    """Draw the curves of a run without labels."""
    metrics = folder.read_metrics()
    if not metrics:
        return []
    path = folder.figures / "pretraining.svg"
    figures.pretraining_curves(metrics, path)
    caption = (
        "The loss, the standard deviation of the features (near 0: collapsed), their effective rank and, if labels are "
        "known, the accuracy of the online linear probe."
    )
    return [Chart.from_file("Training curves", caption, path, wide=True)]


def _accuracy(folder: RunFolder, run: dict[str, Any], metrics: Sequence[dict[str, Any]]) -> list[Chart]:
    if len(metrics) < 2:
        return []
    path = folder.figures / "accuracy.svg"
    figures.accuracy_curves(metrics, figures.FOUR_CURVES, run["start_epoch"], path)
    caption = (
        "Dashed: agreement with the given labels, errors included. Solid: accuracy on the true labels, if known. A "
        "dashed training curve far above the dashed validation curve shows memorised label errors."
    )
    charts = [Chart.from_file("Accuracy during training", caption, path)]
    if all(metrics[-1].get(key) is not None for key, *_ in figures.PORTIONS):
        path = folder.figures / "portions.svg"
        figures.accuracy_curves(metrics, figures.PORTIONS, run["start_epoch"], path)
        caption = (
            "Training accuracy on the true labels. When the curve of corrupted samples falls, the model memorises "
            "wrong labels; when it rises, the model corrects them."
        )
        charts.append(Chart.from_file("Clean and corrupted training samples", caption, path))
    return charts


def _robustness(folder: RunFolder, run: dict[str, Any], metrics: Sequence[dict[str, Any]]) -> list[Chart]:
    attacked = [record for record in metrics if "robust_accuracy" in record]
    if not attacked:
        return []
    path = folder.figures / "robust.svg"
    points = [
        (found["epoch"], found["robust_accuracy"], f"{found['attack']}, {found['images']:,} images")
        for found in (folder.read_json(folder.attack_file, dict[str, Attacked]) or {}).values()
    ]
    figures.accuracy_curves(attacked, figures.UNDER_ATTACK, run["start_epoch"], path, points=points)
    caption = (
        f"PGD-20 on the same {attacked[-1]['robust_images']:,} test images after each epoch. If robust accuracy falls "
        "while clean accuracy rises, the network overfits. Crosses: results of selfadapt attack."
    )
    return [Chart.from_file("Robust accuracy during training", caption, path)]


def _coverage(folder: RunFolder) -> list[Chart]:
    coverage = folder.read_json(folder.coverage_file, Coverage)
    if coverage is None:
        return []
    path = folder.figures / "coverage.svg"
    curves = {
        name: [(100 * coverage, 100 * risk) for coverage, risk in zip(*own["curve"], strict=False)]
        for name, own in coverage["selectors"].items()
    }
    figures.over_columns({"": curves}, "error on answered samples (%)", "coverage (%)", path, marker="")
    caption = "Test error on the most confident samples at each coverage, by selector."
    return [Chart.from_file("Risk and coverage", caption, path)]


def _matrices(folder: RunFolder) -> list[Chart]:
    classes = folder.read_run()["data"]["classes"]
    charts = []
    if folder.labels_file.exists():
        charts += _recovery(folder, classes)
    transition = folder.read_transition(classes)
    if transition is not None:
        path = folder.figures / "transition.svg"
        values = 100 * np.array(transition)
        shown = figures.most_confused(values)
        figures.matrix(values, classes, "estimated true class", "given label", path, decimals=0, shown=shown)
        caption = f"Estimated P(given label | true class) in %.{_on_shown(shown, classes)}"
        charts.append(Chart.from_file("Estimated noise matrix", caption, path))
    return charts


def _recovery(folder: RunFolder, classes: Sequence[str]) -> list[Chart]:
    labels = [row for row in folder.read_labels() if row["part"] == "train"]
    column, name = ("truth", "true label") if labels and "truth" in labels[0] else ("given", "given label")
    number = {name: k for k, name in enumerate(classes)}
    count = np.zeros((len(classes), len(classes)))
    weight = np.zeros_like(count)
    for row in labels:
        cell = number[row[column]], number[row["suggested"]]
        count[cell] += 1
        weight[cell] += float(row["weight"])
    with np.errstate(invalid="ignore"):
        mean_weight = weight / count
    shown = figures.most_confused(count)
    charts = []
    for file, title, values, decimals, caption in (
        ("recovered", "Recovered labels", count, 0, f"Training samples by {name} and suggested label."),
        ("weights", "Sample weights", mean_weight, 2, "Mean training weight of these samples. Blank: no samples."),
    ):
        path = folder.figures / f"{file}.svg"
        figures.matrix(values, classes, name, "suggested label", path, decimals=decimals, shown=shown)
        charts.append(Chart.from_file(title, caption + _on_shown(shown, classes), path))
    return charts


def _on_shown(shown: Sequence[int], classes: Sequence[str]) -> str:
    return "" if len(shown) == len(classes) else f" The {len(shown)} most confused of {len(classes)} classes."
