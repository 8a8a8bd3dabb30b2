"""Run trainings as separate commands: each in several processes, or several at once."""

import signal
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from selfadapt.core.errors import INTERRUPTED, Interrupted, TrainingError, UserError, check_least
from selfadapt.core.progress import ProgressCallback
from selfadapt.core.settings import settings_in
from selfadapt.engine.elastic import launch
from selfadapt.engine.jobs import launch_each
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.request import COMMANDS, Kind, method_class, shared_settings


class Command(NamedTuple):
    """A training: its run folder, whether it uses labels, and its settings by option name."""

    folder: RunFolder
    kind: Kind
    settings: Mapping[str, Any]

    @property
    def is_done(self) -> bool:
        return self.folder.exists and "result" in self.folder.read_run()

    @property
    def arguments(self) -> list[str]:
        """Arguments of `selfadapt` that start or resume the training."""
        return [*command_line(self.kind, self.settings), "--out", str(self.folder.path), "--resume"]


def check_numbers(seeds: int, devices: int, jobs: int) -> None:
    check_least({"--seeds": seeds, "--devices": devices, "--jobs": jobs})
    if devices > 1 and jobs > 1:
        raise UserError(
            "--devices splits each training over processes, --jobs runs several at once; choose one of them"
        )


def train_by_commands(plan: Iterable[Command], devices: int, jobs: int, on_progress: ProgressCallback) -> None:
    """Train what is missing: one after the other in `devices` processes each, or `jobs` at once in one process each."""
    if devices == jobs == 1:
        return  # the caller trains in this process
    missing = [command.arguments for command in plan if not command.is_done]
    if jobs > 1:
        failed = launch_each([[*arguments, "--quiet"] for arguments in missing], jobs, on_progress)
    else:
        codes = ((launch(devices, arguments, prints=False), arguments) for arguments in missing)
        failed = next((own for own in codes if own[0]), None)
    if failed is None:
        return
    code, arguments = failed
    if code == INTERRUPTED:
        raise Interrupted("a training was interrupted")
    reason = f"by {signal.Signals(-code).name}" if code < 0 else "with the error above"
    message = f"the training {arguments[arguments.index('--out') + 1]} ended {reason}"
    raise UserError(message) if code == 2 else TrainingError(f"{message}; run the same command to resume it")


def command_line(kind: Kind, settings: Mapping[str, Any]) -> list[str]:
    """Arguments of `selfadapt` that train with these settings."""
    settings = dict(settings)
    method = settings.pop("method")
    known = {**shared_settings(kind), **settings_in(method_class(kind, method))}
    arguments = [COMMANDS[kind], str(settings.pop("data")), "--method", method]
    for word, value in settings.items():
        option = known[word].option
        if not isinstance(value, bool):
            arguments += [option, str(value)]
        elif value:
            arguments.append(option)
        elif known[word].default:
            arguments.append(f"--no-{option.removeprefix('--')}")
    return arguments
