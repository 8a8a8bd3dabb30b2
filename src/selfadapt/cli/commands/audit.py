"""`selfadapt audit`"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from selfadapt.cli.output import Output, new_folder, percent, print_lines, print_table, progress_bar
from selfadapt.cli.parameters import Device, Processes
from selfadapt.cli.processes import in_processes
from selfadapt.cli.training import opened, run_to_the_end
from selfadapt.core.errors import UserError

if TYPE_CHECKING:
    from selfadapt.review.statistics.label_figures import LabelFigures
    from selfadapt.run_folder.folder import RunFolder

EXAMPLE = "Example: selfadapt audit runs/first, or: selfadapt audit features --labels labels.npy"


def command(
    path: str = typer.Argument(help="Folder of a run, finished or not; a folder of feature shards; or data."),
    labels: Path | None = typer.Option(
        None,
        help="For features and data: a .npy with a label for each sample, or a .csv with the columns id and label. The "
        "labels in the data then count as the truth.",
    ),
    out: Path | None = typer.Option(
        None,
        help="Folder for labels.csv of features, or run folder for data. Default: a new one in runs/.",
        rich_help_panel="Output",
    ),
    device: str = Device,
    devices: int = Processes,
) -> Output:
    """Write the labels of PATH to labels.csv, most likely wrong first, with a suggestion for each likely error.

    PATH is a run, features (a folder of shards from `selfadapt embed --out FOLDER`, or an .npy file), or data, on which
    a run is trained with default settings first.

    Prints the likely errors and the estimated number of wrong labels of each split. After 50 decisions in `selfadapt
    review`, the estimates for a run are confidence intervals.
    """
    from selfadapt.data.sources.shard_folder import has_shards
    from selfadapt.run_folder.folder import RunFolder

    folder = RunFolder(Path(path))
    if folder.exists or folder.metrics_file.exists():  # a run that lost its run.json is no data
        if labels is not None or out is not None:
            raise UserError(f"{path} is a run, which has its labels and its folder; leave out --labels and --out")
        return _audit_run(folder, device, devices)
    if has_shards(folder.path):
        return _audit_features(folder.path, labels, out, device, devices)
    return _audit_data(path, labels, out, device, devices)


def _audit_run(folder: "RunFolder", device: str, devices: int) -> Output:
    from selfadapt.report.page import write_run_page
    from selfadapt.runs.inspect.label_audit import audit_training
    from selfadapt.runs.inspect.label_sheets import draw_label_sheets

    with in_processes(devices, device):
        own = opened(folder.path, device)
        audit = audit_training(own.folder, own.data, own.state)
    draw_label_sheets(own.folder, own.data, audit)
    write_run_page(own.folder)
    yield audit.summary
    _print_run(folder, audit.summary)


def _audit_data(source: str, labels: Path | None, out: Path | None, device: str, devices: int) -> Output:
    from selfadapt.run_folder.folder import RunFolder

    given = {"data": source, "device": device, "labels": None if labels is None else str(labels)}
    started = out is not None and RunFolder(out).exists
    run, result = run_to_the_end("labels", given, out, resume=started, devices=devices)
    yield {**result["audit"], "run": result["run"]}
    _print_run(run.folder, result["audit"])


def _audit_features(path: Path, labels: Path | None, out: Path | None, device: str, devices: int) -> Output:
    from selfadapt.runs.inspect.audit.feature_audit import audit_features

    with in_processes(devices, device), progress_bar("features", transient=True) as on_pass:
        audit = audit_features(path, labels, out or new_folder(f"{path.stem}-audit"), on_pass=on_pass)
    yield audit.summary
    _print_figures(audit.figures, audit.summary, duplicates=str(audit.summary["duplicates"]))


def _print_run(folder: "RunFolder", summary: dict[str, Any]) -> None:
    from selfadapt.review.statistics.label_figures import label_figures

    _print_figures(label_figures(folder), summary, duplicates=f"{summary['duplicates']}, in {folder.duplicates_file}")


def _print_figures(figures: "LabelFigures", summary: dict[str, Any], duplicates: str) -> None:
    from selfadapt.review.statistics.label_figures import COLUMNS

    print(*figures.sentences, sep="\n")
    print_table(COLUMNS, [row.cells() for row in figures.rows])
    lines = {}
    if summary["duplicates"]:
        lines["groups of duplicates"] = duplicates
    small = [row["class"] for row in summary["classes"] if row["too_few"]]
    if small:
        lines["classes with too few samples"] = ", ".join(small)
    if "precision" in summary:
        lines["wrong labels (known truth)"] = str(summary["wrong"])
        lines["precision, recall"] = f"{percent(summary['precision'])}, {percent(summary['recall'])}"
        lines["label recovery"] = percent(summary["recovery"])
    lines["label table"] = summary["labels"]
    print_lines(lines)
