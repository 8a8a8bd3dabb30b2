"""What the commands that train share: start or resume a run, show progress, and stop so that it can be resumed."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from selfadapt.cli.output import OUTPUT, count_bar, new_folder, progress_bar
from selfadapt.cli.processes import start_processes
from selfadapt.core.errors import Interrupted, UserError
from selfadapt.core.launched import follow_launcher, is_launched, is_restarted

if TYPE_CHECKING:
    from selfadapt.runs.config.request import Kind
    from selfadapt.runs.lifecycle.lifecycle import Run
    from selfadapt.runs.lifecycle.opened_run import OpenedRun


def opened(path: Path, device: str) -> "OpenedRun":
    """Open a run read-only."""
    from selfadapt.run_folder.folder import RunFolder
    from selfadapt.runs.lifecycle.opened_run import open_folder

    with count_bar("reading data") as on_progress:
        return open_folder(RunFolder(path), on_progress=on_progress, device=device)


def _saved(checkpoints: Path) -> str:
    names = [path.name.split("-") for path in checkpoints.glob("[0-9]*-[0-9]*")]
    if not names:
        return "nothing is saved yet"
    epochs, steps = max((int(epoch), int(step)) for epoch, step in names)
    return f"saved: {epochs} epochs" + (f" and {steps} steps of the next" if steps else "")


def run_to_the_end(
    kind: "Kind", given: dict[str, Any], out: Path | None, *, resume: bool, devices: int, log_to: str | None = None
) -> "tuple[Run, dict[str, Any]]":
    """Start or resume a run and train it to the end; returns the run and its result.

    With --devices, this starts the processes, waits for them and exits as they do; each of them comes here again.
    In all but the first process, the command ends here.
    """
    given = {name: value for name, value in given.items() if value is not None}
    _start_processes(devices, given.get("data"), out, resume=resume)
    from selfadapt.core import distributed
    from selfadapt.core.device import choose_device
    from selfadapt.run_folder.folder import RunFolder
    from selfadapt.runs.config.facts import inspect_source
    from selfadapt.runs.config.planning import plan_reading
    from selfadapt.runs.config.request import COMMANDS, Request
    from selfadapt.runs.lifecycle.lifecycle import resume as resume_run
    from selfadapt.runs.lifecycle.lifecycle import start
    from selfadapt.runs.tracking import check_trackers
    from selfadapt.runs.train.train_or_load import train

    follow_launcher()
    trackers = check_trackers(log_to)
    request, notice, device = None, None, given.get("device", "auto")
    if out is not None and (resume or is_restarted()) and RunFolder(out).exists:
        folder = RunFolder(out)
        device = given.get("device") or folder.read_run()["settings"]["device"]
    elif "data" not in given:
        raise UserError(f"no DATA given; name a data set or a path: selfadapt {COMMANDS[kind]} digits")
    else:
        request = Request.of(kind, **given)
        reading = plan_reading(request, inspect_source(request))
        notice = reading.notice
        folder = RunFolder(out or new_folder(f"{Path(reading.data.source).stem}-{reading.method_name}"))
    distributed.init(choose_device(device))
    first = distributed.rank() == 0
    OUTPUT.quiet = OUTPUT.quiet or not first
    with folder.locked():
        with count_bar("reading data", notice=notice) as on_progress:
            run = start(request, folder, on_progress) if request else resume_run(folder, kind, given, on_progress)
        size = run.data.image_size
        if size is not None and not OUTPUT.quiet:
            print(
                f"images of different sizes are resized to {size}×{size}; --image-size N for another", file=sys.stderr
            )
        try:
            with progress_bar(f"{run.plan.method_name} on {run.data.name}") as on_stage:
                result = train(run, on_stage, trackers if first else ())
        except Interrupted as interruption:
            again = f"selfadapt {COMMANDS[kind]} --resume --out {run.folder.path}"
            raise Interrupted(
                f"{interruption}; {_saved(run.folder.checkpoints)}; resume with: {again}"
                + (f" --devices {devices}" if devices > 1 else "")
            ) from None
        finally:
            distributed.shutdown()
    if not first:
        raise typer.Exit
    return run, result


def _start_processes(devices: int, data: str | None, out: Path | None, *, resume: bool) -> None:
    if resume and out is None:
        raise UserError("--resume needs --out, the folder of the run to resume")
    arguments = sys.argv[1:]
    if out is None:
        if is_launched():
            raise UserError("several processes need --out, the folder of the run")
        arguments += ["--out", str(new_folder(f"{Path(data or 'run').stem}-{devices}"))]
    start_processes(devices, arguments)
