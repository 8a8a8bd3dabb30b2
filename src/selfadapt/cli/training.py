"""What the commands that train share: begin or go on, show progress, and stop so that one can go on."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from selfadapt.cli.output import count_bar, new_folder, progress_bar
from selfadapt.core.errors import Interrupted, UserError
from selfadapt.engine.launch import follow_launcher, is_launched, is_restarted, launch

if TYPE_CHECKING:
    from selfadapt.runs.config.run_settings import Kind
    from selfadapt.runs.lifecycle.lifecycle import Run, TrainingCallback

Out = typer.Option(None, help="The run folder. Default: a new one below runs/.")
Resume = typer.Option(False, "--resume", help="Go on with the run in --out; begin it if there is none.")
Device = typer.Option("auto", help="auto, cpu, cuda, mps; need not be that of the training.")
Devices = typer.Option(1, help="Train in so many processes, each with a part of every batch.")
Jobs = typer.Option(
    1, help="Run so many trainings at once, each in a process of its own with its share of the cores and of the GPUs."
)


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


def opened(path: Path, device: str, *, quiet: bool) -> "Run":
    """A run to look at, which stays as it is."""
    from selfadapt.run_folder.folder import RunFolder
    from selfadapt.runs.lifecycle.lifecycle import reopen

    with count_bar("reading data", quiet=quiet) as on_progress:
        return reopen(RunFolder(path), on_progress=on_progress, device=device, to_train=False)


def run_to_the_end(
    kind: "Kind",
    command: str,
    train: "Callable[[Run, TrainingCallback], dict[str, Any]]",
    given: dict[str, Any],
    out: Path | None,
    *,
    resume: bool,
    devices: int,
    quiet: bool,
) -> "tuple[Run, dict[str, Any]] | None":
    """The run with its result; None in all processes but the first."""
    from selfadapt.core import distributed
    from selfadapt.run_folder.folder import RunFolder
    from selfadapt.runs.config.run_settings import RunSettings
    from selfadapt.runs.lifecycle.environment import choose_device
    from selfadapt.runs.lifecycle.lifecycle import reopen, start

    follow_launcher()
    there = out is not None and RunFolder(out).exists
    known = RunFolder(out).read_run()["settings"] if out is not None and there else {}
    goes_on = (resume or is_restarted()) and there
    if not goes_on and "data" not in given:
        raise UserError(f"no DATA given; name a data set or a path: selfadapt {command} digits")
    settings = None if goes_on else RunSettings.given(kind, **given)
    distributed.init(choose_device(given.get("device") or known.get("device", "auto")))
    first = distributed.rank() == 0
    quiet = quiet or not first
    name = "" if settings is None else f"{Path(settings.data.source).stem}-{settings.method_name}"
    folder = RunFolder(out or new_folder(name))
    with folder.locked():
        choice = None if settings is None else settings.choice
        with count_bar("reading data", quiet=quiet, notice=choice) as on_progress:
            run = start(settings, folder, on_progress) if settings else reopen(folder, kind, given, on_progress)
        size = run.data.image_size
        if size is not None and not quiet:
            words = f"the images have many sizes and are brought to {size}×{size}; --image-size N for another one"
            print(words, file=sys.stderr)
        try:
            with progress_bar(f"{run.settings.method_name} on {run.data.name}", quiet=quiet) as on_step:
                result = train(run, on_step)
        except Interrupted as interruption:
            again = f"selfadapt {command} --resume --out {run.folder.path}"
            raise Interrupted(
                f"{interruption}; go on with: {again}" + (f" --devices {devices}" if devices > 1 else "")
            ) from None
        finally:
            distributed.shutdown()
    return (run, result) if first else None
