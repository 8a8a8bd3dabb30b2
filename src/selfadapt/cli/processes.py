"""Commands in several processes: `--devices N` starts them on this machine, torchrun on any number of machines."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import typer

from selfadapt.cli.output import OUTPUT
from selfadapt.core.errors import Interrupted, UserError, check_least
from selfadapt.core.launched import follow_launcher, is_launched

SHARED_COMMANDS = ("train", "pretrain", "embed", "audit", "predict", "probe", "attack", "shift")


def check_shared(command: str) -> None:
    """Raise a UserError if a launcher started this command, which runs in one process."""
    if is_launched() and command not in SHARED_COMMANDS:
        raise UserError(
            f"`selfadapt {command}` runs in one process; these run in several: {', '.join(SHARED_COMMANDS)}"
        )


def start_processes(devices: int, arguments: Sequence[str]) -> None:
    """With --devices, run the program with these arguments in that many processes, and exit as they do."""
    check_least({"--devices": devices})
    if devices > 1 and not is_launched():
        from selfadapt.engine.elastic import launch

        raise typer.Exit(launch(devices, arguments))


@contextmanager
def in_processes(devices: int, device: str, *, resumes: bool = False) -> Iterator[bool]:
    """Run the block in each process, and yield whether this one is the first, which goes on to report.

    In the others the command ends with the block. With `resumes`, an interruption says that the same command resumes.
    """
    try:
        start_processes(devices, sys.argv[1:])
        from selfadapt.core import distributed
        from selfadapt.core.device import choose_device

        follow_launcher()
        distributed.init(choose_device(device))
        first = distributed.rank() == 0
        OUTPUT.quiet = OUTPUT.quiet or not first
        try:
            yield first
        finally:
            distributed.shutdown()
        if not first:
            raise typer.Exit
    except Interrupted as interruption:
        if not resumes:
            raise
        raise Interrupted(f"{interruption}; run the same command again to resume") from None
