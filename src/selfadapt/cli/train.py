"""`selfadapt train`"""

import sys
from pathlib import Path
from typing import Any

import typer

from selfadapt.cli.options import with_run_options
from selfadapt.cli.output import Json, Quiet, count_bar, new_folder, percent, print_json, progress_bar
from selfadapt.engine.launch import follow_launcher, is_launched, is_restarted, launch
from selfadapt.errors import Interrupted, UserError

EXAMPLE = "Example: selfadapt train digits --method sat --noise symmetric:0.4 --out runs/first"


@with_run_options
def command(
    given: dict[str, Any],
    data: str | None = typer.Argument(
        None, help="A name (selfadapt data list), or a folder, .csv, .parquet or .npz. May be left out with --resume."
    ),
    method: str | None = typer.Option(
        None,
        help="sat (self-adaptive training), sat-sce, sat-no-weights, sat-no-average, erm (ordinary training), or a "
        "rival: early-stopping, label-smoothing, mixup, forward, gce, gce-truncated, sce, bootstrap-soft, "
        "bootstrap-hard, elr, co-teaching. With abstention: selective, deep-gamblers, selective-net. Default: sat.",
    ),
    out: Path | None = typer.Option(None, help="The run folder. Default: a new one below runs/."),
    resume: bool = typer.Option(False, "--resume", help="Go on with the run in --out; begin it if there is none."),
    devices: int = typer.Option(1, help="Train in so many processes, each with a part of every batch."),
    quiet: bool = Quiet,
    as_json: bool = Json,
) -> None:
    """Train on DATA, evaluate, audit the labels, and write the run folder with its page.

    The same command with --resume goes on where a run was stopped, to the same bits.
    """
    given |= {name: value for name, value in (("data", data), ("method", method)) if value is not None}
    run_in_processes(devices, data, out, resume=resume)
    from selfadapt import processes
    from selfadapt.recipes.run import reopen, start, train
    from selfadapt.recipes.settings import RunSettings, choose_device
    from selfadapt.report.results import RunFolder

    follow_launcher()
    known = RunFolder(out).read_run()["settings"] if out is not None and RunFolder(out).exists else {}
    processes.join(choose_device(known.get("device") or given.get("device", "auto")))
    resume = resume or is_restarted()
    quiet = quiet or as_json or processes.rank() > 0
    with count_bar("decoding images", quiet=quiet) as count:
        if resume and out is not None and RunFolder(out).exists:
            run = reopen(RunFolder(out), given, count)
        elif data is None:
            raise UserError("no DATA given; name a data set or the path of a file: selfadapt train digits")
        else:
            settings = RunSettings.given(**given)
            run = start(settings, RunFolder(out or new_folder(f"{Path(data).stem}-{settings.method}")), count)
    path, first = run.folder.path, processes.rank() == 0
    try:
        with progress_bar(f"{run.settings.method} on {run.data.name}", quiet=quiet) as watch:
            result = train(run, watch)
    except Interrupted as interruption:
        again = f"selfadapt train --resume --out {path}" + (f" --devices {devices}" if devices > 1 else "")
        raise Interrupted(f"{interruption}; go on with: {again}") from None
    finally:
        processes.leave()
    if not first:
        return
    if as_json:
        print_json(result)
        return
    which = "best epoch on validation" if result["method"] == "early-stopping" else "last epoch"
    lines = {
        f"test accuracy ({which})": percent(result["test_accuracy"]),
        "validation, labels as given": percent(result["validation_accuracy"]),
    }
    if result["noise"]:
        nominal, actual = percent(result["noise"]["nominal"]), percent(result["noise"]["actual"])
        lines[f"noise ({result['noise']['kind']})"] = f"{nominal} nominal, {actual} actual"
    if result["start_epoch"] is not None:
        lines["targets move after epoch"] = f"{result['start_epoch']} of {result['epochs']}"
    if result["label_recovery"] is not None:
        lines["labels recovered"] = percent(result["label_recovery"])
    lines["suspect labels"] = f"{result['audit']['suspects']} of {len(run.data.train)}"
    if result["unreadable"]:
        lines["files that cannot be read"] = f"{result['unreadable']}, listed in {run.folder.unreadable_file}"
    lines["page"] = str(run.folder.page)
    for words, value in lines.items():
        print(f"{words:<29}{value}")


def run_in_processes(devices: int, data: str | None, out: Path | None, *, resume: bool) -> None:
    """With --devices, start the processes, wait for them and exit as they do. In one of them, go on."""
    if resume and out is None:
        raise UserError("--resume needs --out, the folder of the run to go on with")
    if devices < 1:
        raise UserError(f"--devices {devices} must be at least 1")
    if is_launched():
        if out is None:
            raise UserError("several processes need --out, the folder of the run")
    elif devices > 1:
        arguments = sys.argv[1:]
        if out is None:
            arguments += ["--out", str(new_folder(f"{Path(data or 'run').stem}-{devices}"))]
        raise typer.Exit(launch(devices, arguments))
