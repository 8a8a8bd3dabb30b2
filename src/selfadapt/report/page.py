"""The report of a run: one HTML file, made from the run folder alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selfadapt.report.contact_sheet import SheetImage, read_sheet
from selfadapt.report.html_pages import Table, count, percent, write_page
from selfadapt.report.run_figures import draw_pretraining_charts, draw_run_charts
from selfadapt.review.conflicts import conflicts_of
from selfadapt.review.statistics.label_figures import label_figures
from selfadapt.review.summary import review_summary
from selfadapt.run_folder.folder import RunFolder
from selfadapt.run_folder.labels_file import read_report

_LISTED = 20  # likely errors and groups of duplicates in a table


def write_run_page(folder: RunFolder, path: Path | None = None) -> Path:
    """Draw the figures of a run, with labels or without, and write its report. Default path: report.html."""
    path, context = path or folder.page, run_context(folder)
    if context["run"]["settings"]["kind"] == "pretraining":
        charts = draw_pretraining_charts(folder)
        return write_page("pretraining.html", path, **context, charts=charts, probe=_probe_table(folder))
    is_audited = folder.labels_file.exists()
    figures, review = label_figures(folder) if is_audited else None, review_summary(folder)
    return write_page(
        "run.html",
        path,
        **context,
        charts=draw_run_charts(folder),
        figures=figures,
        splits=figures and Table(figures.to_json()["columns"], [row.cells() for row in figures.rows]),
        errors=_error_table(folder) if is_audited else None,
        errors_sheet=_sheet(folder.suspects_sheet),
        conflicts=_conflict_table(folder) if is_audited else None,
        conflicts_sheet=_sheet(folder.duplicates_sheet),
        calibration=folder.read_if_there(folder.calibration_file),
        review=review,
        review_table=review and _review_table(review),
        attacks=list((folder.read_if_there(folder.attack_file) or {}).values()),
        attack_table=_attack_table(folder),
        shift=folder.read_if_there(folder.shift_file),
        shift_table=_shift_table(folder),
    )


def run_context(folder: RunFolder) -> dict[str, Any]:
    """What every report shows of a run."""
    run, metrics = folder.read_run(), folder.read_metrics()
    start_epoch = run["settings"]["method"].get("start_epoch")
    fixed_start = f", E_s = {start_epoch}" if isinstance(start_epoch, int) else ""
    last = run.get("result", {}).get("result_epoch", len(metrics))  # the epoch whose network is the result
    return {
        "run": run,
        "name": folder.path.name,
        "path": folder.path,
        "unreadable": folder.read_unreadable(),
        "method": run["method"],
        "label": run["method"] + fixed_start,
        "epochs_done": len(metrics),
        "result": run.get("result"),
        "result_epoch": metrics[last - 1] if metrics else {},
    }


def _sheet(path: Path) -> list[list[SheetImage]]:
    return read_sheet(path) if path.exists() else []


def _error_table(folder: RunFolder) -> Table | None:
    """The likely label errors that are most likely wrong."""
    labels, source = folder.read_labels()[: 4 * _LISTED], folder.read_run()["settings"]["data"]["source"]
    errors = [row for row in labels if row["suspect"] == "1"][:_LISTED]
    if not errors:
        return None
    truth = ("truth",) if "truth" in errors[0] else ()
    columns = ("given → suggested", *truth, "P(wrong)", "confidence", "sample", "split", "reason")
    rows = [
        [
            f"{row['given']} → {row['suggested']}", *(row[name] for name in truth), _p_wrong(row),
            percent(float(row["confidence"])), _sample_name(row, source), row["part"], row["reason"] or "–",
        ]
        for row in errors
    ]  # fmt: skip
    return Table(columns, rows, text_columns=len(columns))


def _conflict_table(folder: RunFolder) -> Table | None:
    """Groups of duplicates with different labels. Members that disagree are marked."""
    groups = folder.read_duplicates()
    conflicts = conflicts_of(read_report(folder), groups)[:_LISTED] if groups else []
    if not conflicts:
        return None
    labels, source = folder.read_labels(), folder.read_run()["settings"]["data"]["source"]
    rows: list[Sequence[str]] = []
    marked = []
    for conflict in conflicts:
        for row, place in ((labels[place], place) for place in conflict.rows):
            if place in conflict.disagreeing:
                marked.append(len(rows))
            name = _sample_name(row, source)
            rows.append((row["duplicate_group"], row["given"], row["suggested"], _p_wrong(row), name, row["part"]))
    columns = ("group", "given", "suggested", "P(wrong)", "sample", "split")
    return Table(columns, rows, text_columns=len(columns), marked=marked)


def _p_wrong(row: dict[str, str]) -> str:
    return percent(float(row["p_wrong"])) if row["p_wrong"] else "–"


def _sample_name(row: dict[str, str], source: str) -> str:
    """The path below the data folder, or the id of a sample without a file."""
    if row["relative_path"] or not row["path"]:
        return row["relative_path"] or row["id"]
    path = Path(row["path"])  # label tables of older runs have absolute paths only
    return str(path.relative_to(source)) if path.is_relative_to(source) else path.name


def _review_table(review: dict[str, Any]) -> Table:
    columns = (
        "split", "labels", "decided", "changed", "removed", "wrong labels (sampled)", "accuracy (given labels)",
        "accuracy (reviewed labels)",
    )  # fmt: skip
    rows = []
    for own in review["parts"]:
        wrong = (
            f"{percent(own.wrong.value)} ({percent(own.wrong.low)} to {percent(own.wrong.high)})" if own.wrong else "–"
        )
        counts = (count(number) for number in (own.labels, own.decided, own.changed, own.removed))
        rows.append((own.part, *counts, wrong, percent(own.accuracy_given), percent(own.accuracy_reviewed)))
    return Table(columns, rows)


def _attack_table(folder: RunFolder) -> Table:
    rows = []
    for found in (folder.read_if_there(folder.attack_file) or {}).values():
        network = f"epoch {found['epoch']}" if found["at"] == "last" else f"{found['at']}, epoch {found['epoch']}"
        by_class = {name: own["robust_accuracy"] for name, own in found["by_class"].items()}
        weakest = min((name for name, own in by_class.items() if own is not None), key=lambda name: by_class[name])
        rows.append(
            (
                found["attack"], network, f"{found['norm']} {found['eps']:g}",
                f"{weakest}, {percent(by_class[weakest])}", count(found["images"]), percent(found["clean_accuracy"]),
                percent(found["robust_accuracy"]),
            )
        )  # fmt: skip
    columns = ("attack", "network", "radius", "weakest class", "images", "clean accuracy", "robust accuracy")
    return Table(columns, rows, text_columns=4)


def _shift_table(folder: RunFolder) -> Table | None:
    shift = folder.read_if_there(folder.shift_file)
    if shift is None:
        return None
    columns = ["corruption", *(f"level {level}" for level in shift["levels"])]
    accuracies = {**shift["by_kind"], "mean": shift["levels"]}
    rows = [[kind.replace("_", " "), *map(percent, levels.values())] for kind, levels in accuracies.items()]
    if "corruption_errors" in shift:  # relative to another run
        columns.append("error ratio")
        for row, error in zip(
            rows, (*shift["corruption_errors"].values(), shift["mean_corruption_error"]), strict=True
        ):
            row.append(f"{error:.3f}")
    return Table(columns, rows, marked=[len(rows) - 1])


def _probe_table(folder: RunFolder) -> Table | None:
    probe = folder.read_if_there(folder.probe_file)
    if not probe:
        return None
    rows = []
    for data, found in probe.items():
        augmented = (
            f"{percent(found['augmented_accuracy'])} ({found['settings']['augment']})"
            if "augmented_accuracy" in found
            else "–"
        )
        others = (percent(found["knn_accuracy"]), percent(found["random_network_accuracy"]))
        rows.append((data, percent(found["test_accuracy"]), augmented, *others))
    columns = ("data", "linear", "linear, augmented images", "nearest neighbours", "linear, untrained network")
    return Table(columns, rows)
