"""The report of a run: one HTML file, made from the run folder alone."""

from pathlib import Path
from typing import Any

from selfadapt.evaluation.label_errors.report import LabelErrorReport
from selfadapt.report.contact_sheet import SheetImage, read_sheet
from selfadapt.report.html_pages import write_page
from selfadapt.report.run_figures import draw_pretraining_charts, draw_run_charts
from selfadapt.review.conflicts import conflicts_of
from selfadapt.review.statistics.label_figures import label_figures, review_summary
from selfadapt.run_folder.contents import Attacked, Calibration, Probe, Shift
from selfadapt.run_folder.folder import RunFolder
from selfadapt.run_folder.labels_file import read_report

_LISTED = 20  # likely errors and groups of duplicates in a table


def write_run_page(folder: RunFolder, path: Path | None = None) -> Path:
    """Draw the figures of a run, with labels or without, and write its report. Default path: report.html."""
    path, context = path or folder.page, run_context(folder)
    if context["run"]["settings"]["kind"] == "pretraining":
        probe = folder.read_json(folder.probe_file, dict[str, Probe])
        return write_page("pretraining.html", path, **context, charts=draw_pretraining_charts(folder), probe=probe)
    report = read_report(folder) if folder.labels_file.exists() else None  # which also checks the file
    return write_page(
        "run.html",
        path,
        **context,
        charts=draw_run_charts(folder),
        figures=None if report is None else label_figures(folder),
        errors=[] if report is None else _likely_errors(folder),
        errors_sheet=recorded_sheet(folder, folder.errors_sheet),
        conflicts=[] if report is None else _conflicts(folder, report),
        conflicts_sheet=recorded_sheet(folder, folder.duplicates_sheet),
        review=review_summary(folder),
        calibration=folder.read_json(folder.calibration_file, Calibration),
        attacks=folder.read_json(folder.attack_file, dict[str, Attacked]) or {},
        shift=folder.read_json(folder.shift_file, Shift),
    )


def recorded_sheet(folder: RunFolder, path: Path) -> list[list[SheetImage]]:
    """The blocks of a contact sheet of the run; an empty list if none was drawn."""
    folder.check_recorded(path)
    return read_sheet(path)


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


def _likely_errors(folder: RunFolder) -> list[dict[str, Any]]:
    errors = [row for row in folder.read_labels()[: 4 * _LISTED] if row["suspect"] == "1"]
    return [_with_sample_name(folder, row) for row in errors[:_LISTED]]


def _conflicts(folder: RunFolder, report: LabelErrorReport) -> list[dict[str, Any]]:
    """The members of groups of duplicates with different labels."""
    groups = folder.read_duplicates()
    if not groups:
        return []
    rows, conflicts = folder.read_labels(), conflicts_of(report, groups)
    return [
        {**_with_sample_name(folder, rows[row]), "disagrees": row in conflict.disagreeing}
        for conflict in conflicts[:_LISTED]
        for row in conflict.rows
    ]


def _with_sample_name(folder: RunFolder, row: dict[str, str]) -> dict[str, Any]:
    """A row of labels.csv with the path below the data folder, or the id of a sample without a file."""
    path, source = Path(row["path"]), folder.read_run()["settings"]["data"]["source"]
    if row["path"] and not row["relative_path"]:  # label tables of older runs have absolute paths only
        row = {**row, "relative_path": str(path.relative_to(source)) if path.is_relative_to(source) else path.name}
    return {**row, "sample": row["relative_path"] or row["id"]}
